"""Whatever a model calls a tool with, and whatever anybody says: an editor can be told of it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from acp import schema as protocol
from acp import utils
from hypothesis import given, settings
from hypothesis import strategies as some

from holdfast import events, types
from holdfast.acp import conversion, plans, updates
from tests.support import acp_schema

HALVES = some.sampled_from(["\ud800", "\udc00", "\ud83d", "x\udfffy"])
TEXT = some.one_of(some.text(max_size=20), HALVES, some.builds(str.__add__, HALVES, some.text(max_size=5)))
VALUE: some.SearchStrategy[Any] = some.recursive(
    some.one_of(some.none(), some.booleans(), some.integers(), some.floats(), TEXT, some.just(10**400)),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
STEP = some.fixed_dictionaries(
    {"step": TEXT, "status": some.sampled_from([*plans.STATES, "odd"])}, optional={"priority": VALUE}
)
EDIT = some.fixed_dictionaries({"old_text": TEXT, "new_text": TEXT})
ARGUMENTS = some.fixed_dictionaries(
    {},
    optional={
        "path": TEXT | some.builds("{}/{}".format, some.sampled_from(["~", "~nobody", "/", "..", "\0"]), TEXT),
        "command": TEXT | VALUE,
        "content": TEXT | VALUE,
        "from_line": some.integers() | VALUE,
        "steps": some.lists(STEP, max_size=3) | VALUE,
        "edits": some.lists(EDIT, max_size=3) | VALUE,
        "old_text": TEXT,
        "new_text": TEXT,
        "query": VALUE,
        "\ud800": VALUE,
    },
)
TOOL = some.sampled_from(["shell", "read_file", "write_file", "edit_file", "search_files", "recall", plans.NAME]) | TEXT
PLACE = some.integers(0, 10**12) | some.just("9" * 5000)
HUNK = some.builds("@@ -{},1 +{},1 @@\n-{}\n+{}".format, PLACE, PLACE, TEXT, TEXT)
RESULT = some.one_of(
    TEXT,
    some.builds("Changed: {}\n{}".format, TEXT, HUNK),
    some.builds("Written: {}\n{}".format, TEXT, HUNK),
    some.builds("{}:{}: {}".format, TEXT, some.integers(0, 10**12), TEXT),
)
CALLED = some.tuples(TEXT, TOOL, ARGUMENTS, RESULT)


def wired(updates: list[Any]) -> None:
    """As they go over the wire: encoded, and held to the protocol."""
    for each in updates:
        sent = utils.serialize_params(protocol.SessionNotification(session_id="one", update=each))
        frame = json.loads(msgspec.json.encode(sent, enc_hook=str))
        acp_schema.vendored().check("client", "session/update", "Notification", frame)


@settings(max_examples=80, deadline=None)
@given(CALLED, some.booleans())
def test_for_any_call_and_its_result_an_editor_can_be_told(called: Any, ok: bool) -> None:
    call_id, tool, arguments, result = called
    teller = updates.UpdateBuilder("/p")
    wired(teller.build(events.ToolStarted(call_id, tool, json.dumps(arguments))))
    asked = events.ApprovalAsked("r1", call_id, tool, result, result, result, result, 1)
    wired(teller.build(asked))
    request = protocol.RequestPermissionRequest(
        session_id="one", tool_call=teller.permission_request(asked), options=conversion.permission_options(asked)
    )
    frame = json.loads(msgspec.json.encode(utils.serialize_params(request), enc_hook=str))
    acp_schema.vendored().check("client", "session/request_permission", "Request", frame)
    wired(teller.build(events.ToolProgress(call_id, result)))
    wired(teller.build(events.ToolFinished(call_id, tool, ok, result)))


@settings(max_examples=50, deadline=None)
@given(CALLED)
def test_for_any_call_of_the_log_an_editor_can_be_told(called: Any) -> None:
    call_id, tool, arguments, result = (_storable(each) for each in called)
    call = {"id": call_id, "name": tool, "arguments": json.dumps(called[2])}
    teller = updates.UpdateBuilder("/p")
    wired(teller.replay(_message("assistant", {"tool_calls": [call, call | {"id": "c2", "arguments": arguments}]})))
    wired(teller.replay(_message("tool", {"content": result, "tool_call_id": call_id})))
    wired(teller.fail_unfinished())


@settings(max_examples=50, deadline=None)
@given(TEXT)
def test_for_any_text_an_editor_can_be_told(text: str) -> None:
    said: list[events.AnyEvent] = [
        events.TextDelta(text),
        events.ReasoningDelta(text),
        events.Notice(text),
        events.Answer(text),
        events.Titled(text),
        events.TurnStarted("c", "s", text, 1, "process"),
    ]
    for event in said:
        wired(updates.UpdateBuilder("/p").build(event))


def _storable(value: Any) -> Any:
    """As a message of the log can hold it: no halves, and numbers that JSON has."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return {_storable(key): _storable(each) for key, each in value.items()}
        case list():
            return [_storable(each) for each in value]
        case float() | int():
            return value if abs(value) < 2**60 else 7
        case _:
            return value


def _message(role: types.Role, body: dict[str, Any]) -> types.Message:
    return types.Message(3, "u1", "s1", role, 0.0, json.dumps(body))
