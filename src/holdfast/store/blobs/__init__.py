"""Attachments and long tool outputs."""
