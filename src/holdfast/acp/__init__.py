"""The editor: the Agent Client Protocol on standard input and output, over the same runtime as every front end."""
