"""AIAgent in another program: strings for model and database, plain functions, streams, structured output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from holdfast import AIAgent, AsyncSessionDB, SessionDB, errors, events, types
from holdfast.agent import loop
from holdfast.model import ScriptedModel, base
from tests.support import agents, provider_process


class StructCity(msgspec.Struct):
    name: str
    people: int


class PydanticCity(pydantic.BaseModel):
    name: str
    people: int


BERGEN = '{"name": "Bergen", "people": 290000}'


async def test_agent_opens_and_closes_a_model_and_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with provider_process.serve(provider_process.reply("Fine.")) as provider:
        for name, value in provider.env.items():
            monkeypatch.setenv(name, value)
        async with AIAgent("openai/gpt-5", "Be brief.", db=tmp_path / "chat.db", session_id="talk") as agent:
            assert (await agent.run_conversation("Hello")).raise_for_status().final_response == "Fine."
    with pytest.raises(errors.StoreClosed):
        agent.db.db.snapshot("talk")
    with SessionDB(tmp_path / "chat.db") as db:
        assert [each.role for each in db.transcript("talk")] == ["user", "assistant"]


def test_run_sync_answers_several_messages_inside_with_and_one_outside(tmp_path: Path) -> None:
    with AIAgent(ScriptedModel(["One.", "Two."]), db=tmp_path / "chat.db", session_id="talk") as agent:
        assert [agent.run_sync(text).final_response for text in ("a", "b")] == ["One.", "Two."]
    with pytest.raises(errors.TurnFailed, match="closed"):
        agent.run_sync("c")
    once = AIAgent(ScriptedModel(["Three.", "Four."]), db=tmp_path / "chat.db", session_id="talk")
    assert once.run_sync("c").final_response == "Three."
    with pytest.raises(errors.TurnFailed, match="closed"):
        once.run_sync("d")


async def test_plain_function_is_a_tool_and_a_given_database_stays_open(db: AsyncSessionDB) -> None:
    def weather(city: str) -> str:
        """Tells the weather."""
        return f"Rain in {city}."

    call = types.ToolCall("c", "weather", {"city": "Bergen"})
    model = ScriptedModel([base.Reply(calls=(call,)), "A coat."])
    async with AIAgent(model, db=db, session_id="talk", tools=[weather]) as agent:
        result = await agent.run_conversation("And there?")
    assert [str(each.content) for each in result.messages[2:]] == ["Rain in Bergen.", "A coat."]
    assert len(await db.transcript("talk")) == 4


async def test_temporary_errors_are_retried_by_default_and_raise_for_status_raises_the_last() -> None:
    script = [errors.ModelBusy(retry_after=0), "Fine."]
    async with AIAgent(ScriptedModel(script)) as agent, AIAgent(ScriptedModel(script), attempts=1) as impatient:
        assert (await agent.run_conversation("Hello")).raise_for_status().final_response == "Fine."
        with pytest.raises(errors.TurnFailed) as raised:
            (await impatient.run_conversation("Hello")).raise_for_status()
        assert raised.value.exit_reason == "model"


async def test_stream_yields_every_event_and_ends_with_the_result() -> None:
    async with AIAgent(ScriptedModel(["Good day."])) as agent:
        seen = [event async for event in agent.stream("Hello")]
        assert "".join(each.text for each in seen if isinstance(each, events.TextDelta)) == "Good day."
        assert isinstance(seen[-1], events.TurnFinished)
        assert seen[-1].result.completed


async def test_closing_a_stream_interrupts_its_turn(db: AsyncSessionDB) -> None:
    agent = agents.agent(db, model := agents.Trickle("Hm"), session_id="talk")
    stream = agent.stream("Hello")
    async for event in stream:
        if isinstance(event, events.TextDelta):
            break
    await stream.aclose()
    assert not agent.busy
    assert model.stuck.cancelled
    assert loop.INTERRUPTED in str((await db.transcript("talk"))[-1].content)


@pytest.mark.parametrize(
    ("kind", "answer", "expected"),
    [
        (StructCity, f"```json\n{BERGEN}\n```", StructCity("Bergen", 290_000)),
        (PydanticCity, BERGEN, PydanticCity(name="Bergen", people=290_000)),
        (list[StructCity], f"[{BERGEN}]", [StructCity("Bergen", 290_000)]),
    ],
)
async def test_answer_is_parsed_into_the_output_type(kind: Any, answer: str, expected: Any, db: AsyncSessionDB) -> None:
    agent = AIAgent(model := ScriptedModel([answer]), db=db)
    for requests in (1, 0):
        result = await agent.run_conversation("A city", uid="u", output_type=kind)
        assert (result.raise_for_status().output, result.api_calls) == (expected, requests)
    assert '"people"' in model.requests[0].system


async def test_invalid_answer_is_corrected_once_and_then_fails_the_turn(db: AsyncSessionDB) -> None:
    agent = AIAgent(model := ScriptedModel(['{"name": "Bergen"}', BERGEN, "Bergen", "Bergen"]), db=db)
    result = await agent.run_conversation("A city", output_type=StructCity)
    assert result.output == StructCity("Bergen", 290_000)
    assert [each.role for each in result.messages] == ["user", "assistant", "user", "assistant"]
    assert "people" in str(model.requests[1].messages[-1].content)
    result = await agent.run_conversation("Another", output_type=StructCity)
    assert (result.exit_reason, result.output, result.final_response) == ("failed", None, "Bergen")
    assert "not a valid StructCity" in str(result.error)
    with pytest.raises(errors.InvalidArgument, match="output_type"):
        await agent.run_conversation("Cities", output_type=lambda: None)
