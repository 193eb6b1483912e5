"""A tool that needs approval: your program decides about every call, and the decision is recorded."""

from holdfast import AIAgent, model, tool, types
from holdfast.tools import base


@tool(approval="reach")
def send_mail(to: str) -> str:
    """Sends a greeting."""
    return f"Sent to {to}."


async def approve(act: base.Act) -> bool:  # or ask a person
    return "ann@" in act.summary


calls = tuple(types.ToolCall(to, "send_mail", {"to": to}) for to in ("ann@example.org", "all@example.org"))
agent = AIAgent(model.ScriptedModel([model.Reply(calls=calls), "Done."]), tools=[send_mail], approve=approve)
for message in agent.run_sync("Greet them.").messages[2:4]:
    print(message.content)
