"""Tools that read, write and search files of a workspace."""
