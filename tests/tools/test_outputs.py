"""Outputs that are too long: what is shown, where the rest is, and that nothing here loses a result."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import AsyncSessionDB, SessionDB, content_parts, errors, types
from holdfast.model import base as models
from holdfast.model import scripted
from holdfast.model.anthropic import request as anthropic_request
from holdfast.model.openai import request as openai_request
from holdfast.tools import base, long_output, registry
from tests.support import agents

LONG = "".join(f"line {number}\n" for number in range(20_000))


async def nothing(name: str) -> bytes:
    raise errors.NotFound("blob", name)


def gives(output: Any) -> base.Tool:
    async def run(_: dict[str, Any]) -> Any:
        if isinstance(output, Exception):
            raise output
        return output

    return base.Tool(types.ToolSpec("give", "Gives.", {"type": "object", "properties": {}}), run)


class Shelf:
    """Keeps in memory, as the store does in files."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def keep(self, text: str) -> str:
        name = f"{len(self.kept):064x}"
        self.kept[name] = text.encode()
        return name

    async def fetch(self, name: str) -> bytes:
        if name not in self.kept:
            return await nothing(name)
        return self.kept[name]


def result(output: Any, shelf: Shelf | None = None) -> types.Content:
    tools = [gives(output), long_output.read_output(shelf.fetch if shelf else nothing)]
    registered = registry.Registry(tools, keep=shelf.keep if shelf else None)
    return asyncio.run(registered.run(types.ToolCall("x", "give", {}))).content


def read(shelf: Shelf, **arguments: Any) -> base.Result:
    registered = registry.Registry([long_output.read_output(shelf.fetch)])
    return asyncio.run(registered.run(types.ToolCall("x", long_output.NAME, arguments)))


def test_a_long_output_keeps_its_beginning_and_its_end() -> None:
    text = "a" * 50_000 + "END"
    short = long_output.shorten(text)
    assert len(short) < long_output.MAX_OUTPUT + 200
    assert short.endswith("END")
    assert "20,003 characters left out, characters 20,000 to 40,003" in short
    assert long_output.shorten("short") == "short"


def test_the_pointer_leads_to_every_character_of_the_output() -> None:
    shelf = Shelf()
    content = result(LONG, shelf)
    assert isinstance(content, list)
    shown, kept = content
    assert kept == {"type": "output", "blob": f"{0:064x}"}
    assert f"read_output with id {kept['blob']}" in shown["text"]
    assert len(shown["text"]) < long_output.MAX_OUTPUT + 300
    found, begin = "", 0
    while begin < len(LONG):
        head, _, piece = str(read(shelf, id=kept["blob"], from_character=begin).content).partition("\n")
        assert head == f"[characters {begin:,} to {begin + len(piece):,} of {len(LONG):,}]"
        found, begin = found + piece, begin + len(piece)
    assert found == LONG


def test_short_outputs_are_left_as_they_are() -> None:
    picture = [{"type": "text", "text": "x"}, {"type": "image", "data": "aaaa"}, {"type": "text", "text": "y"}]
    shelf = Shelf()
    assert result("short", shelf) == "short"
    assert result(picture, shelf) == picture
    assert shelf.kept == {}


def test_many_texts_are_bounded_together_and_pictures_stay() -> None:
    shelf = Shelf()
    given = [{"type": "text", "text": f"{number:05}" * 1_000} for number in range(100)]
    content = result([*given, {"type": "image", "data": "aaaa"}], shelf)
    assert isinstance(content, list)
    assert [part["type"] for part in content] == ["text", "output", "image"]
    assert len(content[0]["text"]) < long_output.MAX_OUTPUT + 300
    assert "00099" * 1_000 in shelf.kept[content[1]["blob"]].decode()


def test_what_is_no_text_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_output, "MAX_OTHER", 1_000)
    picture = {"type": "image", "data": "a" * 600}
    content = result([picture, {"type": "text", "text": "two"}, picture], Shelf())
    assert isinstance(content, list)
    assert content == [{"type": "text", "text": "two\n" + content[0]["text"].partition("\n")[2]}, picture]
    assert "1 more parts" in content[0]["text"]


def test_of_an_endless_output_the_beginning_is_kept_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_output, "MAX_KEPT", 40_000)
    shelf = Shelf()
    content = result("ä" * 90_000, shelf)
    assert isinstance(content, list)
    assert "the first 40,000 of 90,000 characters are kept" in content[0]["text"]
    assert shelf.kept[content[1]["blob"]].decode() == "ä" * 40_000


def test_a_long_error_is_bounded_as_well() -> None:
    content = result(errors.ToolFailed("no " * 50_000), Shelf())
    assert isinstance(content, list)
    assert content[0]["text"].startswith("Error: no no")
    assert len(content[0]["text"]) < long_output.MAX_OUTPUT + 300


@pytest.mark.parametrize("error", [errors.StoreError(), OSError("disk full"), RuntimeError("odd")])
def test_what_cannot_be_kept_loses_the_pointer_and_never_the_result(error: Exception) -> None:
    class Full(Shelf):
        async def keep(self, text: str) -> str:
            raise error

    assert result(LONG, Full()) == long_output.shorten(LONG)


def test_nothing_is_kept_where_no_tool_could_read_it() -> None:
    shelf = Shelf()
    registered = registry.Registry([gives(LONG)], keep=shelf.keep)
    assert asyncio.run(registered.run(types.ToolCall("x", "give", {}))).content == long_output.shorten(LONG)
    assert shelf.kept == {}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"id": "../../etc/passwd"}, "Invalid output id"),
        ({"id": "A" * 64}, "Invalid output id"),
        ({"id": "f" * 64}, "There is no blob"),
        ({"id": f"{0:064x}", "from_character": -1}, "must be at least 0"),
        ({"id": f"{0:064x}", "length": 0}, "must be at least 0"),
        ({"id": f"{1:064x}"}, "not text"),
    ],
)
def test_only_what_is_kept_and_is_text_can_be_read(arguments: dict[str, Any], told: str) -> None:
    shelf = Shelf()
    shelf.kept = {f"{0:064x}": b"short", f"{1:064x}": b"\xff\x00"}
    made = read(shelf, **arguments)
    assert not made.ok
    assert told in str(made.content)
    assert "nothing from 9 on" in str(read(shelf, id=f"{0:064x}", from_character=9).content)


@given(
    text=st.text(min_size=1, max_size=300),
    begin=st.integers(0, 400),
    length=st.integers(1, 400),
)
def test_for_any_text_and_range_exactly_that_range_is_read(text: str, begin: int, length: int) -> None:
    shelf = Shelf()
    shelf.kept["0" * 64] = text.encode()
    content = str(read(shelf, id="0" * 64, from_character=begin, length=length).content)
    piece = text[begin : begin + length]
    assert content.split("\n", 1)[1:] == ([piece] if piece else [])


# --- in a conversation -------------------------------------------------------------------------------------


async def test_the_rest_lives_with_its_message_and_models_are_shown_the_text_only(
    tmp_path: Path, db: AsyncSessionDB
) -> None:
    async def fetch(name: str) -> bytes:
        with db.db.blobs.open(name) as found:
            return found.read()

    model = scripted.ScriptedModel(
        [
            agents.calls("give"),
            lambda request: agents.calls(long_output.NAME, read_output=_id_in(request)),
            "It is line 9000.",
        ]
    )
    agent = agents.agent(db, model, session_id="talk", tools=[gives(LONG), long_output.read_output(fetch)])
    made = await agent.run_conversation("Show it")
    assert made.completed
    stored, piece = (each for each in made.messages if each.role == "tool")
    assert isinstance(stored.content, list)
    digest = stored.content[1]["blob"]
    assert "line 9000\n" in content_parts.text(piece.content)
    # Named by a message, it is no garbage, however old.
    assert (await db.blobs.collect(0)).blobs == 0
    assert (await fetch(digest)).decode() == LONG
    seen = model.requests[1]
    assert content_parts.parse(seen.messages[-1].content) == (content_parts.Text(stored.content[0]["text"]),)
    for request in (_openai(seen), _anthropic(seen)):
        assert request.count(digest) == 1  # in the pointer
        assert '"blob"' not in request
    told: list[str] = []
    await db.admin.export_pages(told.append)
    assert f"(output: attachment {digest[:12]}, text/plain; charset=utf-8, {len(LONG):,} bytes)" in "".join(told)
    await db.admin.export_to(tmp_path / "talk.jsonl")
    with SessionDB(tmp_path / "other.db") as other:
        other.admin.import_from(tmp_path / "talk.jsonl")
        with other.blobs.open(digest) as found:
            assert found.read().decode() == LONG
    await db.delete_conversation("talk")
    assert (await db.blobs.collect(0)).blobs == 1


def _id_in(request: models.Request) -> str:
    text = content_parts.text(request.messages[-1].content)
    digest = text.partition("read_output with id ")[2][:64]
    return f'{{"id": "{digest}", "from_character": {LONG.index("line 9000")}, "length": 2000}}'


def _openai(request: models.Request) -> str:
    return msgspec.json.encode(openai_request.build(request, openai_request.Dialect(provider="p"), model="m")).decode()


def _anthropic(request: models.Request) -> str:
    return msgspec.json.encode(anthropic_request.build(request, model="m", max_output=99)).decode()
