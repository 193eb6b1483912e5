"""Fakes, servers, clients and data that several test modules share."""
