"""Backups, their schedule and their retention."""
