"""A long output is shortened with a pointer to its whole text, and never lost."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import AsyncSessionDB, content_parts, errors, types
from holdfast.model import base as models
from holdfast.model import scripted
from holdfast.tools import base, long_output, registry
from tests.support import agents

LONG = "".join(f"line {number}\n" for number in range(20_000))


def tool_with_output(output: Any) -> base.Tool:
    async def run(_: dict[str, Any]) -> Any:
        return output

    return base.Tool(types.ToolSpec("give", "Gives.", {"type": "object", "properties": {}}), run)


class Outputs:
    """Tools whose long outputs are kept in a store."""

    def __init__(self, db: AsyncSessionDB) -> None:
        self.db = db

    async def keep(self, text: str) -> str:
        return (await self.db.blobs.put(text.encode(), "text/plain")).digest

    async def fetch(self, name: str) -> bytes:
        with self.db.db.blobs.open(name) as found:
            return found.read()

    async def call(self, output: Any, keep: Any = None) -> types.Content:
        """Return the content of a tool with this output."""
        tools = [tool_with_output(output), long_output.read_output(self.fetch)]
        return (await registry.Registry(tools, keep=keep or self.keep).run(types.ToolCall("x", "give", {}))).content

    async def call_shortened(self, output: Any) -> tuple[str, list[dict[str, Any]]]:
        """Return the text and the other parts of a shortened output."""
        content = await self.call(output)
        return content[0]["text"], content[1:]

    async def read(self, **arguments: Any) -> base.Result:
        tools = registry.Registry([long_output.read_output(self.fetch)])
        return await tools.run(types.ToolCall("x", long_output.NAME, arguments))


@pytest.fixture
def outputs(db: AsyncSessionDB) -> Outputs:
    return Outputs(db)


def test_shortened_text_has_its_beginning_and_its_end() -> None:
    short = long_output.shorten("a" * 50_000 + "END")
    assert len(short) < long_output.MAX_OUTPUT + 200
    assert short.endswith("END")
    assert "20,003 characters left out, characters 20,000 to 40,003" in short
    assert long_output.shorten("short") == "short"


async def test_pointer_gives_access_to_every_character(outputs: Outputs) -> None:
    shown, (kept,) = await outputs.call_shortened(LONG)
    assert f"read_output with id {kept['blob']}" in shown
    assert len(shown) < long_output.MAX_OUTPUT + 300
    found, begin = "", 0
    while begin < len(LONG):
        shown = str((await outputs.read(id=kept["blob"], from_character=begin)).content)
        head, _, piece = shown.partition("\n")
        assert head == f"[characters {begin:,} to {begin + len(piece):,} of {len(LONG):,}]"
        found, begin = found + piece, begin + len(piece)
    assert found == LONG


async def test_many_parts_are_bounded_together(outputs: Outputs, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [{"type": "text", "text": f"{number:05}" * 1_000} for number in range(100)]
    shown, (kept, image) = await outputs.call_shortened([*given, {"type": "image", "data": "aaaa"}])
    assert (kept["type"], image["type"]) == ("output", "image")
    assert len(shown) < long_output.MAX_OUTPUT + 300
    assert "00099" * 1_000 in (await outputs.fetch(kept["blob"])).decode()
    monkeypatch.setattr(long_output, "MAX_OTHER", 1_000)
    picture = {"type": "image", "data": "a" * 600}
    shown, others = await outputs.call_shortened([picture, {"type": "text", "text": "two"}, picture])
    assert others == [picture]
    assert shown.startswith("two\n")
    assert "1 more parts" in shown


async def test_only_the_beginning_of_a_huge_output_is_kept(outputs: Outputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_output, "MAX_KEPT", 40_000)
    shown, (kept,) = await outputs.call_shortened("ä" * 90_000)
    assert "the first 40,000 of 90,000 characters are kept" in shown
    assert (await outputs.fetch(kept["blob"])).decode() == "ä" * 40_000


async def test_output_that_is_short_or_cannot_be_kept_or_read_has_no_pointer(outputs: Outputs) -> None:
    for error in (errors.StoreError(), OSError("disk full")):
        assert await outputs.call(LONG, agents.failing(error)) == long_output.shorten(LONG)
    image = [{"type": "text", "text": "x"}, {"type": "image", "data": "aaaa"}, {"type": "text", "text": "y"}]
    assert [await outputs.call("short"), await outputs.call(image)] == ["short", image]
    registered = registry.Registry([tool_with_output(LONG)], keep=outputs.keep)
    assert (await registered.run(types.ToolCall("x", "give", {}))).content == long_output.shorten(LONG)
    assert (await outputs.db.blobs.collect(0)).blobs == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"id": "../../etc/passwd"}, "Invalid output id"),
        ({"id": "f" * 64}, "There is no blob"),
        ({"from_character": -1}, "must be at least 0"),
    ],
)
async def test_only_kept_text_can_be_read(outputs: Outputs, arguments: dict[str, Any], reason: str) -> None:
    kept = await outputs.keep("short")
    result = await outputs.read(**{"id": kept, **arguments})
    assert not result.ok
    assert reason in str(result.content)
    other = await outputs.db.blobs.put(b"\xff\x00", "text/plain")
    assert "not text" in str((await outputs.read(id=other.digest)).content)
    assert "nothing from 9 on" in str((await outputs.read(id=kept, from_character=9)).content)


async def test_kept_output_lives_as_long_as_its_message(outputs: Outputs, db: AsyncSessionDB) -> None:
    def read_on(request: models.Request) -> models.Reply:
        digest = content_parts.text(request.messages[-1].content).partition("read_output with id ")[2][:64]
        begin = LONG.index("line 9000")
        arguments = f'{{"id": "{digest}", "from_character": {begin}, "length": 2000}}'
        return agents.calls(long_output.NAME, read_output=arguments)

    model = scripted.ScriptedModel([agents.calls("give"), read_on, "It is line 9000."])
    tools = [tool_with_output(LONG), long_output.read_output(outputs.fetch)]
    made = await agents.agent(db, model, session_id="talk", tools=tools).run_conversation("Show it")
    assert made.completed
    stored, piece = (each for each in made.messages if each.role == "tool")
    digest = stored.content[1]["blob"]
    assert "line 9000\n" in content_parts.text(piece.content)
    assert (await db.blobs.collect(0)).blobs == 0
    assert (await outputs.fetch(digest)).decode() == LONG
    # The model is sent the shortened text only.
    seen = model.requests[1]
    assert content_parts.parse(seen.messages[-1].content) == (content_parts.Text(stored.content[0]["text"]),)
    await db.delete_conversation("talk")
    assert (await db.blobs.collect(0)).blobs == 1
