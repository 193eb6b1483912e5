"""Chat Completions, the API that most model servers offer."""
