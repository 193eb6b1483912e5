"""AIAgent in a program of one's own: strings for model and database, plain functions, streams, structured output."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from holdfast import AIAgent, AsyncSessionDB, SessionDB, errors, events, types
from holdfast.agent import loop
from holdfast.model import ScriptedModel, base
from tests.support import agents, fake_provider


class StructCity(msgspec.Struct):
    name: str
    people: int


@dataclass
class DataCity:
    name: str
    people: int


class DictCity(TypedDict):
    name: str
    people: int


class PydanticCity(pydantic.BaseModel):
    name: str
    people: int


BERGEN = '{"name": "Bergen", "people": 290000}'


def values(city: Any) -> tuple[str, int]:
    return (city["name"], city["people"]) if isinstance(city, dict) else (city.name, city.people)


def test_model_and_database_are_strings_and_what_the_agent_opened_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> AIAgent:
        async with AIAgent("openai/gpt-5", "Be brief.", db=tmp_path / "chat.db", session_id="talk") as agent:
            assert (await agent.run_conversation("Hello")).raise_for_status().final_response == "Fine."
            return agent

    with fake_provider.serve(lambda _: "Fine.") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        agent = asyncio.run(story())
    with pytest.raises(errors.StoreClosed):
        agent.db.db.snapshot("talk")
    with SessionDB(tmp_path / "chat.db") as db:
        assert [each.role for each in db.transcript("talk")] == ["user", "assistant"]


async def test_a_database_that_was_given_stays_open(db: AsyncSessionDB) -> None:
    async with AIAgent(ScriptedModel(["Fine."]), db=db, session_id="talk") as agent:
        await agent.run_conversation("Hello")
    assert len(await db.transcript("talk")) == 2


async def test_a_plain_function_is_a_tool() -> None:
    def weather(city: str) -> str:
        """Tells the weather."""
        return f"Rain in {city}."

    call = types.ToolCall("c", "weather", {"city": "Bergen"})
    async with AIAgent(ScriptedModel([base.Reply(calls=(call,)), "A coat."]), tools=[weather]) as agent:
        result = await agent.run_conversation("And there?")
        assert [str(each.content) for each in result.messages[2:]] == ["Rain in Bergen.", "A coat."]


async def test_temporary_errors_are_retried_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel([errors.ModelBusy(retry_after=0), "Fine."])
    async with AIAgent(model) as agent:
        assert (await agent.run_conversation("Hello")).final_response == "Fine."
    async with AIAgent(ScriptedModel([errors.ModelBusy(retry_after=0), "Fine."]), attempts=1) as agent:
        assert (await agent.run_conversation("Hello")).exit_reason == "model"


def test_context_files_are_not_read_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "AGENTS.md").write_text("Use tabs.", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert AIAgent(ScriptedModel([])).context_files == ()
    assert [each.text for each in AIAgent(ScriptedModel([]), context_files=True).context_files] == ["Use tabs."]


async def test_raise_for_status_raises_with_the_reason() -> None:
    async with AIAgent(ScriptedModel([errors.KeyRefused("The key was refused.")])) as agent:
        with pytest.raises(errors.TurnFailed, match=r"^The key was refused\.$") as raised:
            (await agent.run_conversation("Hello")).raise_for_status()
        assert raised.value.exit_reason == "model"


async def test_stream_yields_every_event_and_ends_with_the_result() -> None:
    async with AIAgent(ScriptedModel(["Good day."])) as agent:
        seen = [event async for event in agent.stream("Hello")]
        assert "".join(each.text for each in seen if isinstance(each, events.TextDelta)) == "Good day."
        assert isinstance(seen[-1], events.TurnFinished)
        assert seen[-1].result.completed


async def test_leaving_a_stream_interrupts_its_turn(db: AsyncSessionDB) -> None:
    model = agents.Trickle("Hm")
    agent = agents.agent(db, model, session_id="talk")
    stream = agent.stream("Hello")
    async for event in stream:
        if isinstance(event, events.TextDelta):
            break
    await stream.aclose()
    assert not agent.busy
    assert model.stuck.cancelled
    assert loop.INTERRUPTED in str((await db.transcript("talk"))[-1].content)


@pytest.mark.parametrize("kind", [StructCity, DataCity, DictCity, PydanticCity], ids=lambda kind: kind.__name__)
async def test_an_answer_is_parsed_into_the_output_type(kind: Any) -> None:
    model = ScriptedModel([f"```json\n{BERGEN}\n```"])
    async with AIAgent(model) as agent:
        result = await agent.run_conversation("A city", output_type=kind)
        assert values(result.raise_for_status().output) == ("Bergen", 290_000)
        assert isinstance(result.output, dict if kind is DictCity else kind)
        assert '"people"' in model.requests[0].system


async def test_an_invalid_answer_is_corrected_once_within_the_turn() -> None:
    model = ScriptedModel(['{"name": "Bergen"}', BERGEN])
    async with AIAgent(model) as agent:
        result = await agent.run_conversation("A city", output_type=StructCity)
        assert result.output == StructCity("Bergen", 290_000)
        assert [each.role for each in result.messages] == ["user", "assistant", "user", "assistant"]
        assert "people" in str(model.requests[1].messages[-1].content)


async def test_an_answer_that_stays_invalid_fails_the_turn() -> None:
    async with AIAgent(ScriptedModel(["Bergen"] * 3)) as agent:
        result = await agent.run_conversation("A city", output_type=StructCity)
        assert (result.exit_reason, result.output, result.final_response) == ("failed", None, "Bergen")
        assert "not a valid StructCity" in str(result.error)


async def test_a_message_sent_again_has_the_same_output(db: AsyncSessionDB) -> None:
    agent = AIAgent(ScriptedModel([BERGEN]), db=db)
    one, two = [await agent.run_conversation("A city", uid="u", output_type=DataCity) for _ in range(2)]
    assert one.output == two.output == DataCity("Bergen", 290_000)
    assert two.api_calls == 0


async def test_a_list_is_an_output_type_and_a_function_is_none() -> None:
    async with AIAgent(ScriptedModel([f"[{BERGEN}]"])) as agent:
        result = await agent.run_conversation("Cities", output_type=list[StructCity])
        assert result.output == [StructCity("Bergen", 290_000)]
        with pytest.raises(errors.InvalidArgument, match="output_type"):
            await agent.run_conversation("Cities", output_type=values)
