"""HTTP: OpenAI-compatible chat requests, webhooks, health and metrics on one port."""
