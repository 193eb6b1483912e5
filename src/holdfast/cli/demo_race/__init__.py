"""The race behind `holdfast demo`: the same processes, once on naive tables and once on the store."""
