"""A model of a provider: set OPENAI_API_KEY, or name another model such as anthropic/claude-sonnet-4-5."""

from holdfast import AIAgent

agent = AIAgent("openai/gpt-5", instructions="Answer in one sentence.", db="chat/chat.db", session_id="trip")
print(agent.run_sync("Why is the sky blue?").final_response)
