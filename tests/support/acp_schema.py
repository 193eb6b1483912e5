"""What the Agent Client Protocol lets an agent say, held against every frame it says.

`protocol.json` is the protocol's published schema (npm's @agentclientprotocol/sdk, Apache-2.0) without its prose; an
acceptance test says that it still is. The schema allows any property it does not know of, so that old clients live
with new agents; here a property that nobody knows is a mistake. `python -m tests.support.acp_schema SCHEMA.json`
writes the file anew.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import jsonschema_rs

VENDORED = Path(__file__).parents[1] / "acp" / "protocol.json"
SOURCE = "npm @agentclientprotocol/sdk 2.4.0, schema/v1/schema.unstable.json, Apache-2.0, Zed Industries; without prose"
PROSE = {"description", "title", "examples", "default", "format", "x-docs-ignore"}
# What these hold is named by whoever wrote the schema, so nothing in them is a word of the schema language.
NAMED = ("properties", "$defs")

Frame = dict[str, Any]
Side = Literal["agent", "client"]


class Wrong(AssertionError):
    """A frame that may not be said."""


# --- the schema --------------------------------------------------------------------------------------


def bare(schema: Any, named: bool = False) -> Any:
    """The same schema without prose."""
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
    """The same schema, refusing properties it does not name; `value` says that it describes a whole value.

    Parts that are put together by allOf and the like each name some of the properties, so they are only counted where
    the value as a whole is described.
    """
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for key, inner in schema.items():
        match key:
            case "properties":
                made[key] = {name: strict(each) for name, each in inner.items()}
            case "$defs":
                made[key] = {name: strict(each, value=False) for name, each in inner.items()}
            case "items":
                made[key] = strict(inner)
            case "allOf" | "anyOf" | "oneOf":
                made[key] = [strict(each, value=False) for each in inner]
            case _:
                made[key] = inner
    return made | {"unevaluatedProperties": False} if value and _describes(made) else made


def _describes(schema: Frame) -> bool:
    return bool({"properties", "$ref", "allOf", "anyOf", "oneOf"} & {*schema})


class Protocol:
    """The published schema, asked by method."""

    def __init__(self, schema: Frame, *, lenient: bool = False) -> None:
        self._schema = schema if lenient else strict(schema)
        self._wrap = (lambda each: each) if lenient else strict
        self._names = {
            (each["x-side"], each["x-method"], _kind(name)): name
            for name, each in schema["$defs"].items()
            if "x-method" in each
        }
        self._made: dict[str, tuple[jsonschema_rs.Draft202012Validator, jsonschema.Draft202012Validator]] = {}

    def knows(self, side: Side, method: str, kind: str) -> bool:
        return (side, method, kind) in self._names

    def check(self, side: Side, method: str, kind: str, value: Any) -> None:
        """Raises Wrong unless the value is what this method takes or gives."""
        name = self._names.get((side, method, kind))
        if name is None:
            raise Wrong(f"the protocol has no {kind.lower()} {method} for the {side}")
        self.check_as(name, value)

    def check_as(self, name: str, value: Any) -> None:
        # One of them takes a thousandth of the time, the other one can say what is wrong.
        quick, telling = self._validators(name)
        if quick.is_valid(value):
            return
        found = [leaf for error in telling.iter_errors(value) for leaf in _leaves(error)]
        if not found:
            raise Wrong(f"{name}: is not valid")
        # Where a part is wrong, the whole has properties that nobody vouches for.
        error = max(found, key=lambda leaf: (leaf.validator != "unevaluatedProperties", len(leaf.absolute_path)))
        place = "/".join(map(str, error.absolute_path)) or "(top)"
        raise Wrong(f"{name} at {place}: {error.message[:500]}")

    def _validators(self, name: str) -> tuple[jsonschema_rs.Draft202012Validator, jsonschema.Draft202012Validator]:
        if name not in self._made:
            whole = self._wrap({"$ref": f"#/$defs/{name}"}) | {"$defs": self._schema["$defs"]}
            self._made[name] = jsonschema_rs.Draft202012Validator(whole), jsonschema.Draft202012Validator(whole)
        return self._made[name]


def _leaves(error: jsonschema.ValidationError) -> Iterator[jsonschema.ValidationError]:
    """What an error comes from. Of a union only the kind that was meant is asked, if its mark is that of one."""
    if not error.context:
        yield error
        return
    kinds: dict[Any, list[jsonschema.ValidationError]] = {}
    for inner in error.context:
        kinds.setdefault(inner.relative_schema_path[0], []).append(inner)
    meant = [kind for kind in kinds.values() if not any(each.validator == "const" for each in kind)]
    for kind in meant or kinds.values():
        for inner in kind:
            yield from _leaves(inner)


def _kind(name: str) -> str:
    return next(kind for kind in ("Request", "Response", "Notification") if name.endswith(kind))


@functools.cache
def vendored() -> Protocol:
    return Protocol(json.loads(VENDORED.read_text("utf-8")))


# --- the wire ----------------------------------------------------------------------------------------


class Wire:
    """Both directions of one connection, in the order of the client; what the agent says is held to the protocol."""

    def __init__(self, protocol: Protocol | None = None) -> None:
        self._protocol = protocol or vendored()
        self._asked: dict[Any, Frame] = {}
        self._waiting: set[Any] = set()
        self._sessions: set[str] = set()
        self._calls: dict[tuple[str, str], str] = {}
        self.counted: dict[str, int] = {}

    def sent(self, frame: Frame) -> None:
        """What the client says; it may be as wrong as a test wants it to be."""
        if {"result", "error"} & {*frame} and "method" not in frame:
            self._waiting.discard(frame.get("id"))
            return
        if "id" in frame:
            self._asked[frame["id"]] = frame
        params = frame.get("params")
        if frame.get("method") in ("session/load", "session/resume") and isinstance(params, dict):
            session = str(params.get("sessionId"))
            self._sessions.add(session)
            # It is opened anew, and may be told again from its beginning.
            self._calls = {key: status for key, status in self._calls.items() if key[0] != session}

    def got(self, frame: Any) -> None:
        """What the agent says. Raises Wrong for what it may not say."""
        try:
            self._got(frame)
        except Wrong as wrong:
            raise Wrong(f"{wrong}\n{json.dumps(frame)[:2000]}") from None

    def open_calls(self, session_id: str) -> set[str]:
        """The tool calls of a session that were begun and not ended."""
        return {
            call
            for (session, call), status in self._calls.items()
            if session == session_id and status in ("pending", "in_progress")
        }

    def _got(self, frame: Any) -> None:
        if not isinstance(frame, dict) or frame.get("jsonrpc") != "2.0":
            raise Wrong("not a frame of JSON-RPC 2.0")
        if "method" in frame:
            self._unasked(frame)
        elif "error" in frame:
            self._exact(frame, "jsonrpc", "id", "error")
            self._protocol.check_as("Error", frame["error"])
            self._answered(frame)
        else:
            self._exact(frame, "jsonrpc", "id", "result")
            asked = self._answered(frame)
            assert asked is not None
            self._protocol.check("agent", asked["method"], "Response", frame["result"])
            if asked["method"] in ("session/new", "session/fork"):
                self._sessions.add(frame["result"]["sessionId"])
            self._count(f"{asked['method']} answered")

    def _unasked(self, frame: Frame) -> None:
        method = frame["method"]
        if "id" in frame:
            self._exact(frame, "jsonrpc", "id", "method", "params")
            if frame["id"] in self._waiting:
                raise Wrong("a second request with an id that waits for its answer")
            self._waiting.add(frame["id"])
            self._protocol.check("client", method, "Request", frame["params"])
        else:
            self._exact(frame, "jsonrpc", "method", "params")
            self._protocol.check("client", method, "Notification", frame["params"])
        self._of_session(frame["params"])
        self._count(method)

    def _of_session(self, params: Frame) -> None:
        session = params.get("sessionId")
        if session is not None and session not in self._sessions:
            raise Wrong(f"told of session {session}, which the client does not know of yet")
        update = params.get("update")
        if update:
            self._count(update["sessionUpdate"])
            self._of_call(str(session), update)

    def _of_call(self, session: str, update: Frame) -> None:
        kind, key = update["sessionUpdate"], (session, update.get("toolCallId", ""))
        if kind == "tool_call":
            if key in self._calls:
                raise Wrong("a tool call that was begun before")
            self._calls[key] = update.get("status", "pending")
        elif kind == "tool_call_update":
            if key not in self._calls:
                raise Wrong("an update of a tool call that was never begun")
            self._calls[key] = update.get("status") or self._calls[key]

    def _answered(self, frame: Frame) -> Frame | None:
        if frame["id"] is None and "error" in frame:
            return None
        if frame["id"] not in self._asked:
            raise Wrong("an answer to nothing, or a second one")
        return self._asked.pop(frame["id"])

    def _exact(self, frame: Frame, *keys: str) -> None:
        if {*frame} != {*keys}:
            raise Wrong(f"has {sorted(frame)}, should have {sorted(keys)}")

    def _count(self, what: str) -> None:
        self.counted[what] = self.counted.get(what, 0) + 1


if __name__ == "__main__":
    published = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    VENDORED.write_text(json.dumps({"$comment": SOURCE} | bare(published), separators=(",", ":")) + "\n", "utf-8")
