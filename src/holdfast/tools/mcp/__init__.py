"""Servers of the Model Context Protocol: programs and addresses that bring tools and prompts of their own."""
