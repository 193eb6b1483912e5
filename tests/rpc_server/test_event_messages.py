"""Events of a run as messages for a client, by the options of its session."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec
import pytest

from holdfast import events, safe_text
from holdfast.rpc_server import event_messages, wire_types
from tests.support.agents import turn_result

MESSAGES: list[tuple[events.AnyEvent, str | None, dict[str, Any]]] = [
    (events.TurnQueued("pid 7"), "status", {"kind": "queued", "data": {"holder": "pid 7"}}),
    (events.TurnStarted("c", "s", "Hello", 3), "message.start", {"uid": "u", "seq": 3, "text": "Hello", "notice": ""}),
    (events.TurnStarted("c", "s", "It ended.", 3, "process"), "message.start", {"uid": "u", "notice": "process"}),
    (events.TextDelta("Y"), "message.delta", {"kind": "text", "text": "Y"}),
    (events.ReasoningDelta("H"), "message.delta", {"kind": "reasoning", "text": "H"}),
    (events.MessageStored(1, "u", "user"), None, {}),
    (events.ToolStarted("c1", "shell", "{}"), "tool.start", {"call_id": "c1", "line": "→ shell"}),
    (events.ToolProgress("c1", "half"), "status", {"kind": "tool.progress", "data": {"call_id": "c1"}}),
    (events.ToolFinished("c1", "shell", False, "\nno\n"), "tool.complete", {"ok": False, "line": "✗ shell  no"}),
    (events.ApprovalAsked("r", "c1", "shell", "Run x."), "approval.request", {"request_id": "r", "number": 0}),
    (events.ApprovalSettled("r", True, "me"), "status", {"kind": "approval.settled", "text": "Allowed (me)."}),
    (events.Notice("Mind.", "warning"), "status", {"kind": "notice", "level": "warning"}),
    (events.Notice("Bad.", "error"), "error", {"text": "Bad."}),
    (events.Titled("T"), None, {}),
    (events.Compacted("s2", 9, 100, 10), "status", {"kind": "compacted", "level": "info"}),
    (events.Answer("So."), "status", {"kind": "answer", "text": "So."}),
    (events.Say("x"), None, {}),
    (events.Moved("x"), None, {}),
    (events.Quit(), None, {}),
    (
        events.TurnFinished(turn_result(final_response="Yes.")),
        "message.complete",
        {"uid": "u", "status": "completed", "text": "Yes."},
    ),
]


def test_every_kind_of_event_has_a_message_or_none() -> None:
    assert {type(event) for event, _, _ in MESSAGES} == {*get_args(events.AnyEvent)}
    builder = event_messages.EventMessageBuilder(wire_types.SessionOptions(show_reasoning=True))
    for event, kind, payload in MESSAGES:
        built = [each for each in [builder.build(event, "u")] if each is not None]
        assert [wire_types.EVENT_TYPES[type(each)] for each in built] == ([kind] if kind else []), event
        for each in built:
            assert payload.items() <= msgspec.to_builtins(each).items()
    builder.options = wire_types.SessionOptions(show_reasoning=False)
    assert builder.build(events.ReasoningDelta("H"), "u") is None


@pytest.mark.parametrize("columns", [20, 21, 40])
def test_tool_line_fits_the_columns_and_is_printable(columns: int) -> None:
    builder = event_messages.EventMessageBuilder(wire_types.SessionOptions(columns=columns))
    started = builder.build(events.ToolStarted("c", "shell", '{"command": "\x1b[31m漢字漢字漢字\n漢字漢字"}'))
    assert isinstance(started, wire_types.ToolStart)
    assert started.line.isprintable()
    assert columns - 2 <= safe_text.cells(started.line) <= columns


@pytest.mark.parametrize(
    ("progress", "shown"),
    [("all", ["read", "read", "shell", "read"]), ("new", ["read", "shell", "read"]), ("off", [])],
)
def test_progress_option_selects_whole_calls(progress: Literal["all", "new", "off"], shown: list[str]) -> None:
    builder = event_messages.EventMessageBuilder(wire_types.SessionOptions(tool_progress=progress))
    calls = [*enumerate(["read", "read", "shell", "read"])]
    for _ in range(2):  # Another turn starts anew.
        builder.build(events.TurnStarted("c", "s", "x", 1))
        started = [builder.build(events.ToolStarted(f"{n}", name, "{}")) for n, name in calls]
        reported = [builder.build(events.ToolProgress(f"{n}", "half")) for n, _ in calls]
        ended = [builder.build(events.ToolFinished(f"{n}", name, True, "")) for n, name in calls]
        assert [name for (_, name), sent in zip(calls, started, strict=True) if sent] == shown
        assert [each is None for each in started] == [each is None for each in ended]
        assert any(reported) == (progress == "all")
