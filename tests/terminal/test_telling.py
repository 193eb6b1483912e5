"""Events of a run as a client is told them: each kind, by the options of its session."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from holdfast import events, safe_text, types
from holdfast.rpc_server import event_messages, wire_types

RESULT = events.TurnResult(
    final_response="Yes.",
    messages=(),
    api_calls=1,
    completed=True,
    failed=False,
    partial=False,
    interrupted=False,
    error=None,
    exit_reason="completed",
    usage=types.Usage(),
    session_id="s",
    conversation_id="c",
)

TOLD: list[tuple[events.AnyEvent, str | None, dict[str, Any]]] = [
    (events.TurnQueued("pid 7"), "status", {"kind": "queued", "data": {"holder": "pid 7"}}),
    (events.TurnStarted("c", "s", "Hello", 3), "message.start", {"uid": "u", "seq": 3, "text": "Hello", "notice": ""}),
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
    (events.TurnFinished(RESULT), "message.complete", {"uid": "u", "status": "completed", "text": "Yes."}),
]


def test_every_kind_of_event_is_told_or_knowingly_not() -> None:
    assert {type(event) for event, _, _ in TOLD} == {*get_args(events.AnyEvent)}
    teller = event_messages.EventMessageBuilder(wire_types.SessionOptions(show_reasoning=True))
    for event, kind, payload in TOLD:
        told = [each for each in [teller.build(event, "u")] if each is not None]
        assert [wire_types.EVENT_TYPES[type(each)] for each in told] == ([kind] if kind else []), event
        for each in told:
            assert payload.items() <= msgspec.to_builtins(each).items()


@pytest.mark.parametrize("columns", [20, 21, 40])
def test_lines_are_one_line_of_as_many_columns_and_hold_no_codes(columns: int) -> None:
    teller = event_messages.EventMessageBuilder(wire_types.SessionOptions(columns=columns))
    begun = teller.build(events.ToolStarted("c", "shell", '{"command": "\x1b[31m漢字漢字漢字\n漢字漢字"}'))
    assert isinstance(begun, wire_types.ToolStart)
    line = begun.line
    assert line.isprintable()
    assert columns - 2 <= safe_text.cells(line) <= columns


def test_of_new_tools_the_first_call_in_a_row_is_told_and_its_end() -> None:
    teller = event_messages.EventMessageBuilder(wire_types.SessionOptions(tool_progress="new"))

    def calls(*names: str) -> list[str]:
        teller.build(events.TurnStarted("c", "s", "x", 1))
        begun = [teller.build(events.ToolStarted(f"{n}", name, "{}")) for n, name in enumerate(names)]
        ended = [teller.build(events.ToolFinished(f"{n}", name, True, "")) for n, name in enumerate(names)]
        assert [each is None for each in begun] == [each is None for each in ended]
        return [name for name, told in zip(names, begun, strict=True) if told]

    assert calls("read", "read", "shell", "read") == ["read", "shell", "read"]
    # Another turn begins anew.
    assert calls("read", "read") == ["read"]
