"""Composition of the program: from settings to an open store, models, tools and agents."""
