"""Check every frame of an agent against the published schema of the Agent Client Protocol.

`protocol.json` is the schema of npm's @agentclientprotocol/sdk (Apache-2.0) without its prose; an acceptance test
compares the two. The published schema allows unknown properties, so that old clients work with new agents; this
module refuses them. `python -m tests.support.acp_schema SCHEMA.json` writes the file again.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from pathlib import Path
from typing import Any, Literal

import jsonschema
import jsonschema_rs

VENDORED = Path(__file__).parents[1] / "acp" / "protocol.json"
SOURCE = "npm @agentclientprotocol/sdk 2.4.0, schema/v1/schema.unstable.json, Apache-2.0, Zed Industries; without prose"
PROSE = {"description", "title", "examples", "default", "format", "x-docs-ignore"}
# The keys of these objects are names of properties and types, not keywords of JSON Schema.
NAMED = ("properties", "$defs")
KIND = re.compile("(?:Request|Response|Notification)$")

Frame = dict[str, Any]


class Wrong(AssertionError):
    """An invalid frame."""


def bare(schema: Any, named: bool = False) -> Any:
    """Return the schema without prose."""
    if isinstance(schema, list):
        return [bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: bare(value, named=not named and key in NAMED)
        for key, value in schema.items()
        if named or (key not in PROSE and not key.startswith("x-deserialize"))
    }


def strict(schema: Any, value: bool = True) -> Any:
    """Return the schema with unknown properties refused; `value` is whether it describes a whole value.

    The parts of allOf and the like each name some of the properties, so only the whole can refuse the rest.
    """
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for key in {"properties", "$defs"} & {*schema}:
        made[key] = {name: strict(each, key == "properties") for name, each in schema[key].items()}
    for key in {"allOf", "anyOf", "oneOf"} & {*schema}:
        made[key] = [strict(each, value=False) for each in schema[key]]
    if "items" in schema:
        made["items"] = strict(schema["items"])
    describes = {"properties", "$ref", "allOf", "anyOf", "oneOf"} & {*schema}
    return made | {"unevaluatedProperties": False} if value and describes else made


class Protocol:
    """The published schema; its types are found by side, method and kind."""

    def __init__(self, schema: Frame, *, lenient: bool = False) -> None:
        self._strict = (lambda each: each) if lenient else strict
        self._schema = self._strict(schema)
        self._names = {
            (each["x-side"], each["x-method"], KIND.findall(name)[0]): name
            for name, each in schema["$defs"].items()
            if "x-method" in each
        }
        self._validators: dict[str, jsonschema_rs.Draft202012Validator] = {}

    def check(self, side: Literal["agent", "client"], method: str, kind: str, value: Any) -> None:
        """Raise Wrong unless the value is a valid request, response or notification of this method."""
        if (side, method, kind) not in self._names:
            raise Wrong(f"the protocol has no {kind.lower()} {method} for the {side}")
        self.check_type(self._names[side, method, kind], value)

    def check_type(self, name: str, value: Any) -> None:
        whole = self._strict({"$ref": f"#/$defs/{name}"}) | {"$defs": self._schema["$defs"]}
        if name not in self._validators:
            self._validators[name] = jsonschema_rs.Draft202012Validator(whole)
        if not self._validators[name].is_valid(value):
            # This library takes a thousand times longer, but names the invalid part.
            error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(whole).iter_errors(value))
            raise Wrong(f"{name}: {error}")


@functools.cache
def vendored() -> Protocol:
    return Protocol(json.loads(VENDORED.read_text("utf-8")))


class Wire:
    """Both directions of a connection, in the order of the client; frames of the agent are checked."""

    def __init__(self, protocol: Protocol | None = None) -> None:
        self._protocol = protocol or vendored()
        self._asked: dict[Any, Frame] = {}
        self._waiting: set[Any] = set()
        self._sessions: set[str] = set()
        self._calls: dict[tuple[str, str], str] = {}

    def sent(self, frame: Frame) -> None:
        """Record a frame of the client, which may be invalid."""
        if "method" not in frame:
            self._waiting.discard(frame.get("id"))
            return
        if "id" in frame:
            self._asked[frame["id"]] = frame
        params = frame.get("params")
        if frame["method"] in ("session/load", "session/resume") and isinstance(params, dict):
            session = str(params.get("sessionId"))
            self._sessions.add(session)
            # An opened session may be replayed from its beginning.
            self._calls = {key: status for key, status in self._calls.items() if key[0] != session}

    def got(self, frame: Any) -> None:
        """Check a frame of the agent; raise Wrong if it is invalid or not expected."""
        _require(isinstance(frame, dict) and frame.get("jsonrpc") == "2.0", "not a frame of JSON-RPC 2.0", frame)
        kind = next((each for each in ("method", "error", "result") if each in frame), "result")
        keys = {"jsonrpc", kind, *(("params",) if kind == "method" else ("id",))}
        _require({*frame} - ({"id"} if kind == "method" else set()) == keys, f"has {sorted(frame)}", frame)
        if kind == "method":
            self._check_unasked(frame, frame["params"])
            return
        if kind == "error":
            self._protocol.check_type("Error", frame["error"])
            if frame["id"] is None:
                return
        _require(frame["id"] in self._asked, "an answer to nothing, or a second one", frame)
        asked = self._asked.pop(frame["id"])
        if kind == "result":
            self._protocol.check("agent", asked["method"], "Response", frame["result"])
            if asked["method"] in ("session/new", "session/fork"):
                self._sessions.add(frame["result"]["sessionId"])

    def open_calls(self, session_id: str) -> set[str]:
        """Return the tool calls of a session that were begun and not ended."""
        running = ("pending", "in_progress")
        return {call for (session, call), status in self._calls.items() if session == session_id and status in running}

    def _check_unasked(self, frame: Frame, params: Frame) -> None:
        if "id" in frame:
            _require(frame["id"] not in self._waiting, "a second request with a pending id", frame)
            self._waiting.add(frame["id"])
        self._protocol.check("client", frame["method"], "Request" if "id" in frame else "Notification", params)
        session, update = params.get("sessionId"), params.get("update") or {"sessionUpdate": ""}
        _require(session is None or session in self._sessions, "a session that the client does not know yet", frame)
        key, kind = (str(session), update.get("toolCallId", "")), update["sessionUpdate"]
        if kind in ("tool_call", "tool_call_update"):
            _require((key in self._calls) is (kind == "tool_call_update"), "a call begun before, or never begun", frame)
            self._calls[key] = update.get("status") or self._calls.get(key, "pending")


def _require(valid: bool, why: str, frame: Any) -> None:
    if not valid:
        raise Wrong(f"{why}\n{json.dumps(frame)[:2000]}")


if __name__ == "__main__":
    published = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    VENDORED.write_text(json.dumps({"$comment": SOURCE} | bare(published), separators=(",", ":")) + "\n", "utf-8")
