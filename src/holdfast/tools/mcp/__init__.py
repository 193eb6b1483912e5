"""Servers of the Model Context Protocol, which provide tools and prompts."""
