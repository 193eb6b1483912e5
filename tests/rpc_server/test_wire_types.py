"""Recorded frames of whole conversations, and the schema that they conform to.

`python -m tests.rpc_server.test_wire_types` writes both anew. Ids, times and sizes that change have names instead.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from holdfast.rpc_server import wire_types
from tests.support import approvals, conversations, rpc_client, rpc_schema
from tests.support.compaction import FakeSummarizer, fill

GOLDEN = Path(__file__).parent / "golden"
SCHEMA = Path(__file__).parent.parent.parent / "docs" / "reference" / "rpc.schema.json"
SESSION = re.compile(r"\d{8}_\d{6}_[0-9a-f]{6}")
CHANGING = {"at", "started_at", "active_at", "used", "before", "after", "request_id", "holder"}


class Recorder:
    """A client whose exchanges are recorded."""

    def __init__(self, client: rpc_client.RpcClient) -> None:
        self._client = client
        self.exchanges: list[dict[str, Any]] = []
        self.wait_for = client.wait_for

    async def call(self, method: str, **params: Any) -> Any:
        response = await self._client.request(method, **params)
        request = {"jsonrpc": "2.0", "id": response["id"], "method": method, "params": params}
        self.exchanges.append({"request": request, "response": response})
        return response.get("result")


async def conversation(server: rpc_client.Harness, client: Recorder) -> None:
    key = (await client.call("session.create", options={"columns": 60}))["session_id"]
    await client.call("prompt.submit", session_id=key, text="Plan the trip", uid="first")
    await client.wait_for("message.complete")
    await client.call("session.info", session_id=key)
    await client.call("session.history", session_id=key)
    await client.call("session.undo", session_id=key)
    await client.call("session.list")
    await client.call("session.close", session_id=key)


async def approval(server: rpc_client.Harness, client: Recorder) -> None:
    key = (await client.call("session.create"))["session_id"]
    await client.call("prompt.submit", session_id=key, text="Tidy up", uid="first")
    request = (await client.wait_for("approval.request"))["payload"]["request_id"]
    await client.call("approval.respond", session_id=key, request_id=request, answer="once")
    await client.wait_for("message.complete")
    await client.call("session.close", session_id=key)


async def compaction(server: rpc_client.Harness, client: Recorder) -> None:
    await fill(server.db, 90)
    await client.call("session.resume", session_id="talk")
    await client.call("prompt.submit", session_id="talk", text="Hello", uid="first")
    await client.wait_for("status")
    server.model.say("Good ", "morning.", None)
    await client.wait_for("message.complete")
    await client.call("session.compress", session_id="talk")
    await client.call("session.close", session_id="talk")


async def refusals(server: rpc_client.Harness, client: Recorder) -> None:
    key = (await client.call("session.create"))["session_id"]
    await client.call("session.resume", session_id="nobody")
    await client.call("session.interrupt", session_id="nobody")
    await client.call("prompt.submit", session_id=key)
    await client.call("prompt.submit", session_id=key, text="Hello", colour="blue")
    await client.call("session.compress", session_id=key)
    await client.call("session.undo", session_id=key)
    await client.call("command.exec", session_id=key, line="/nothing")
    await client.call("no.such.method")
    await client.call("session.close", session_id=key)


Scenario = Callable[[rpc_client.Harness, Recorder], Awaitable[None]]
SCENARIOS: dict[str, tuple[Scenario, dict[str, Any]]] = {
    "conversation": (conversation, {"script": ["To the sea."]}),
    "approval": (approval, {"script": [approvals.shell_reply("rm -r build"), "Tidy now."]}),
    "compaction": (compaction, {"summarizer": FakeSummarizer()}),
    "refusals": (refusals, {"script": []}),
}


async def record(name: str) -> dict[str, Any]:
    """Return the frames of a scenario."""
    play, given = SCENARIOS[name]
    async with rpc_client.connect(clock=conversations.Clock(), **given) as (server, client):
        recorder = Recorder(client)
        await play(server, recorder)
        return {"exchanges": recorder.exchanges, "events": [frame for frame in client.frames if "id" not in frame]}


def stabilize(frames: dict[str, Any]) -> str:
    """Return the frames as JSON, with names instead of values that change."""
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


@pytest.fixture(scope="module")
def schema() -> Any:
    return json.loads(SCHEMA.read_text("utf-8"))


def validate(schema: Any, name: str, value: Any) -> None:
    whole = {"$ref": f"#/components/schemas/{name}", "components": schema["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_frames_are_unchanged_and_conform_to_the_schema(name: str, schema: Any) -> None:
    frames = await record(name)
    assert stabilize(frames) == (GOLDEN / f"{name}.json").read_text("utf-8")
    for request, response in (each.values() for each in frames["exchanges"]):
        if "result" in response:
            method = wire_types.METHODS[request["method"]]
            validate(schema, method.params.__name__, request["params"])
            validate(schema, method.result.__name__, response["result"])
    for event in (frame["params"] for frame in frames["events"]):
        validate(schema, "Event", event)
        validate(schema, wire_types.EVENTS[event["type"]].__name__, event["payload"])


def test_schema_file_is_up_to_date() -> None:
    why = "python -m tests.rpc_server.test_wire_types writes it anew."
    assert SCHEMA.read_text("utf-8") == rpc_schema.format_schema(), why


def test_only_requests_refuse_unknown_fields(schema: Any) -> None:
    schemas = schema["components"]["schemas"]
    closed = {name for name, each in schemas.items() if each.get("additionalProperties") is False}
    assert closed == {each.params.__name__ for each in wire_types.METHODS.values()} | {"OptionChanges", "ImageParams"}
    event = {"type": "error", "session_id": None, "payload": {"text": "No.", "new": 1}}
    validate(schema, "Event", event)
    for wrong in ({**event, "type": "other"}, {**event, "type": "ready"}, {**event, "payload": {}}):
        with pytest.raises(jsonschema.ValidationError):
            validate(schema, "Event", wrong)


def test_schema_describes_every_method_event_error_and_field(schema: Any) -> None:
    assert [each["name"] for each in schema["methods"]] == [*wire_types.METHODS]
    golden = [json.loads((GOLDEN / f"{name}.json").read_text("utf-8")) for name in SCENARIOS]
    seen = {frame["params"]["type"] for recorded in golden for frame in recorded["events"]}
    assert {*schema["x-events"]} == seen | {"error"}
    compacted_to = schema["components"]["schemas"]["SessionState"]["properties"]["compacted_to"]
    assert compacted_to["description"].startswith("The last message that the summary replaces")
    guide = (SCHEMA.parents[1] / "guides" / "custom-clients.md").read_text("utf-8")
    documented = re.findall(r"^\| −(\d+) \|", guide, re.MULTILINE)
    assert {each["code"] for each in schema["components"]["errors"].values()} == {-int(code) for code in documented}
    assert schema["x-notifications"].keys() == {"event", "$/cancelRequest"}
    validate(schema, "Cancel", {"id": 7})


if __name__ == "__main__":
    SCHEMA.write_text(rpc_schema.format_schema(), "utf-8")
    for scenario in SCENARIOS:
        (GOLDEN / f"{scenario}.json").write_text(stabilize(asyncio.run(record(scenario))), "utf-8")
