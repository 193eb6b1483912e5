"""Turns of an agent with tools of MCP servers, and their prompts as commands."""

from __future__ import annotations

import asyncio

from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from holdfast import AIAgent, AsyncSessionDB, events
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from holdfast.terminal import input_completion
from holdfast.tools.mcp import servers
from tests.support import agents, mcp_servers


async def test_turn_that_waits_for_a_server_can_be_interrupted(db: AsyncSessionDB) -> None:
    begun = asyncio.Event()

    def emit(event: events.AnyEvent) -> None:
        if isinstance(event, events.TurnStarted):
            begun.set()

    async with mcp_servers.running(mcp_servers.raw("silent")) as started:
        agent = agents.agent(db, ScriptedModel(["a"]), session_id="here", tool_source=started.offer)
        turn = asyncio.create_task(agent.run_conversation("hi", emit=emit))
        await begun.wait()
        agent.interrupt()
        assert (await turn).interrupted


async def test_prompt_is_listed_completed_and_sent_as_a_command(plain: servers.McpServers, db: AsyncSessionDB) -> None:
    async def build(conversation_id: str) -> AIAgent:
        return AIAgent(db=db, model=ScriptedModel(["Fine."]), session_id=conversation_id)

    async def send(line: str) -> events.AnyEvent:
        answers: list[events.AnyEvent] = []
        with opened.subscribe("here") as stream:
            await opened.send("here", events.Command(line), answers.append)
            stream.put(None)
            (answer,) = [each.event async for each in stream] + answers
        return answer

    async with runtime.Runtime(db, build, prompt_commands=plain) as opened:
        helped = await send("/help")
        assert isinstance(helped, events.Answer)
        assert "/raw:greet who=… [how=…]" in helped.text
        assert "Greets." in helped.text
        assert await send("/raw:plain_words") == events.Say("Plain words.")
        for line, reason in (("/raw:greet", "Missing: who"), ("/raw:none", "Unknown command")):
            answer = await send(line)
            assert isinstance(answer, events.Notice)
            assert reason in answer.text
    completer = input_completion.InputCompleter(plain.listed)
    for typed in ("/raw", "/raw:g"):
        found = completer.get_completions(Document(typed), CompleteEvent(text_inserted=True))
        assert "/raw:greet " in [each.text for each in found]
