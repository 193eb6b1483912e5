"""The runtime: front ends send it commands for a conversation and render its events."""
