"""A tool of your own: a typed function with a docstring. The model here plays a script; any other does as well."""

import asyncio

from holdfast import AIAgent, SessionDB, model, tool, types


@tool(parallel=True)  # it only looks; @tool(approval="change") is for one that has to ask first
def weather(city: str, days: int = 1) -> str:
    """Tells the weather of the next days."""
    return f"{city}, {days} days: rain, then sun."


call = types.ToolCall("call-1", "weather", {"city": "Bergen", "days": 2})
script = model.ScriptedModel([model.Reply(calls=(call,)), "Take a coat."])
with SessionDB("chat/chat.db") as db:
    agent = AIAgent(script, db=db, tools=[weather])
    result = asyncio.run(agent.run_conversation("Do I need a coat in Bergen?"))
    for message in result.messages[2:]:
        print(message.role, message.content)
