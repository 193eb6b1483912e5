"""Inbound and outbound messages of chat platforms, and the contacts that send them."""
