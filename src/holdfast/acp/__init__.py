"""The agent for editors: the Agent Client Protocol over stdio."""
