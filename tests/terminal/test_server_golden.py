"""Golden frames: whole conversations as they go over the wire, and as the schema says they may.

`python -m tests.terminal.test_server_golden` writes them anew. Ids, times and sizes that differ from run to run have
names instead. Answers stand with what was asked; events stand behind them, in their order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from holdfast.rpc_server import wire_types
from tests.support import approvals, conversations, rpc_client, rpc_schema
from tests.support.chat import Dictated
from tests.support.compaction import WINDOW, FakeSummarizer, fill

GOLDEN = Path(__file__).parent / "golden"
SCHEMA = Path(__file__).parent.parent.parent / "docs" / "rpc.schema.json"
SESSION = re.compile(r"\d{8}_\d{6}_[0-9a-f]{6}")
CHANGING = {"at", "started_at", "active_at", "used", "before", "after", "request_id", "holder"}


class Recorder:
    """A client whose frames are kept."""

    def __init__(self, client: rpc_client.Caller) -> None:
        self._client = client
        self.exchanges: list[dict[str, Any]] = []
        self.until = client.until

    async def ask(self, method: str, **params: Any) -> Any:
        answer = await self._client.asking(method, **params)
        request = {"jsonrpc": "2.0", "id": answer["id"], "method": method, "params": params}
        self.exchanges.append({"request": request, "response": answer})
        return answer.get("result")

    @property
    def events(self) -> list[dict[str, Any]]:
        return [frame for frame in self._client.frames if "id" not in frame]


async def conversation(desk: rpc_client.Desk, client: Recorder) -> None:
    key = (await client.ask("session.create", options={"columns": 60}))["session_id"]
    await client.ask("prompt.submit", session_id=key, text="Plan the trip", uid="first")
    await client.until("message.complete")
    await client.ask("session.info", session_id=key)
    await client.ask("session.history", session_id=key)
    await client.ask("session.undo", session_id=key)
    await client.ask("session.list")
    await client.ask("session.close", session_id=key)


async def approval(desk: rpc_client.Desk, client: Recorder) -> None:
    key = (await client.ask("session.create"))["session_id"]
    await client.ask("prompt.submit", session_id=key, text="Tidy up", uid="first")
    request = (await client.until("approval.request"))["payload"]["request_id"]
    await client.ask("approval.respond", session_id=key, request_id=request, answer="once")
    await client.until("message.complete")
    await client.ask("session.close", session_id=key)


async def compaction(desk: rpc_client.Desk, client: Recorder) -> None:
    await fill(desk.db, 90)
    await client.ask("session.resume", session_id="talk")
    await client.ask("prompt.submit", session_id="talk", text="Hello", uid="first")
    await client.until("status")
    model = desk.home.model
    assert isinstance(model, Dictated)
    model.say("Good ", "morning.", None)
    await client.until("message.complete")
    await client.ask("session.compress", session_id="talk")
    await client.ask("session.close", session_id="talk")


async def refusals(desk: rpc_client.Desk, client: Recorder) -> None:
    key = (await client.ask("session.create"))["session_id"]
    await client.ask("session.resume", session_id="nobody")
    await client.ask("session.interrupt", session_id="nobody")
    await client.ask("prompt.submit", session_id=key)
    await client.ask("prompt.submit", session_id=key, text="Hello", colour="blue")
    await client.ask("session.compress", session_id=key)
    await client.ask("session.undo", session_id=key)
    await client.ask("command.exec", session_id=key, line="/nothing")
    await client.ask("no.such.method")
    await client.ask("session.close", session_id=key)


Story = Callable[[rpc_client.Desk, Recorder], Awaitable[None]]
STORIES: dict[str, tuple[Story, Callable[[], dict[str, Any]]]] = {
    "conversation": (conversation, lambda: {"script": ["To the sea."]}),
    "approval": (approval, lambda: {"script": [approvals.runs("rm -r build"), "Tidy now."]}),
    "compaction": (compaction, lambda: {"model": Dictated(window=WINDOW), "summarizer": FakeSummarizer()}),
    "refusals": (refusals, dict),
}


def played(name: str) -> dict[str, Any]:
    """What goes over the wire in a story, as it came."""
    story, given = STORIES[name]
    found: dict[str, Any] = {}

    async def told(desk: rpc_client.Desk, client: rpc_client.Caller) -> None:
        recorder = Recorder(client)
        await story(desk, recorder)
        found.update(exchanges=recorder.exchanges, events=recorder.events)

    rpc_client.run(told, clock=conversations.Clock(), **given())
    return found


def steady(frames: dict[str, Any]) -> str:
    """The same, with names for what is another one each time."""
    names: dict[str, str] = {}

    def named(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: named(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [named(each) for each in value]
        if key in CHANGING and isinstance(value, int | float | str):
            return f"<{key}>"
        if key == "uid" and value != "first" and value is not None:
            return "<uid>"
        if not isinstance(value, str):
            return value
        value = re.sub(r"[\d,]+ tokens( before, [\d,]+ after)?", "<tokens>", value)
        return SESSION.sub(lambda found: names.setdefault(found[0], f"<session {len(names) + 1}>"), value)

    return json.dumps(named(frames), indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("name", STORIES)
def test_frames_are_as_they_were_and_as_the_schema_says(name: str) -> None:
    frames = played(name)
    assert steady(frames) == (GOLDEN / f"{name}.json").read_text("utf-8")
    for exchange in frames["exchanges"]:
        request, response = exchange["request"], exchange["response"]
        if "result" in response:
            valid(wire_types.METHODS[request["method"]].params.__name__, request["params"])
            valid(wire_types.METHODS[request["method"]].result.__name__, response["result"])
    for frame in frames["events"]:
        event = frame["params"]
        valid("Event", event)
        valid(document()["x-events"][event["type"]]["payload"]["$ref"].rpartition("/")[2], event["payload"])


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SCHEMA.read_text("utf-8"))
    return found


def valid(name: str, value: Any) -> None:
    whole = {"$ref": f"#/components/schemas/{name}", "components": document()["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)


def test_the_schema_file_is_up_to_date() -> None:
    assert SCHEMA.read_text("utf-8") == rpc_schema.format_schema(), (
        "python -m tests.terminal.test_server_golden writes it anew."
    )


def test_every_reference_of_the_schema_leads_somewhere() -> None:
    text, found = SCHEMA.read_text("utf-8"), document()
    references = set(re.findall(r'"\$ref": "#/components/(\w+)/(\w+)"', text))
    assert references
    assert all(name in found["components"][kind] for kind, name in references)
    for each in found["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(each)


def test_only_what_is_asked_is_held_to_the_fields_that_are_known() -> None:
    schemas = document()["components"]["schemas"]
    closed = {name for name, each in schemas.items() if each.get("additionalProperties") is False}
    asked = {each.params.__name__ for each in wire_types.METHODS.values()}
    assert closed == asked | {"OptionChanges", "ImageParams"}


def test_events_are_held_to_what_their_type_carries() -> None:
    told = {"type": "error", "session_id": None, "payload": {"text": "No.", "new": 1}}
    valid("Event", told)
    for wrong in ({**told, "type": "other"}, {**told, "type": "ready"}, {**told, "payload": {}}):
        with pytest.raises(jsonschema.ValidationError):
            valid("Event", wrong)


def test_the_schema_says_what_fields_are_for_and_every_error_there_is() -> None:
    found = document()
    info = found["components"]["schemas"]["SessionState"]["properties"]
    assert (
        info["compacted_to"]["description"]
        == "The last message that the summary replaces in the context; 0 without a summary."
    )
    codes = {each["code"] for each in found["components"]["errors"].values()}
    told = re.findall(r"^\| −(\d+) \|", (SCHEMA.parent / "rpc.md").read_text("utf-8"), re.MULTILINE)
    assert codes == {-int(code) for code in told}
    assert found["x-notifications"].keys() == {"event", "$/cancelRequest"}
    valid("Cancel", {"id": 7})


def test_the_schema_tells_of_every_method_and_event() -> None:
    found = document()
    assert [each["name"] for each in found["methods"]] == [*wire_types.METHODS]
    golden = [json.loads((GOLDEN / f"{name}.json").read_text("utf-8")) for name in STORIES]
    seen = {frame["params"]["type"] for story in golden for frame in story["events"]}
    assert seen <= found["x-events"].keys()
    assert {*found["x-events"]} - seen == {"error"}


if __name__ == "__main__":
    SCHEMA.write_text(rpc_schema.format_schema(), "utf-8")
    for story in STORIES:
        (GOLDEN / f"{story}.json").write_text(steady(played(story)), "utf-8")
