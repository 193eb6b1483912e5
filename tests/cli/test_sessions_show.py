"""`sessions show` tells the whole log and what became of each message, or exactly what the model sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SessionDB, content_parts
from tests.cli.conftest import BRANCH, SECOND, THIRD, TRIP
from tests.support import cli_process

Holdfast = Callable[..., cli_process.Run]

TRANSCRIPT = f"""\
{TRIP}  Trip to Lisbon
8 messages, live, head {THIRD}, in /work/trip

1  user  2026-05-28 20:26  [in the summary]
    message 1

2  assistant  2026-05-28 20:27  [pinned]
    message 2

3  user  2026-05-28 20:28  [in the summary]
    message 3

4  assistant  2026-05-28 20:29  [in the summary]
    message 4

5  user  2026-05-28 20:30
    message 5

6  assistant  2026-05-28 20:31  [hidden]
    message 6

── {TRIP} ended: compression; continued in {SECOND}
── compaction: this summary replaces messages up to 4 in the context
    They plan a trip.

7  assistant  2026-05-28 20:33
    calls ls (c1): {{"path":"/"}}

8  tool  2026-05-28 20:33
    result of c1:
    etc home

── {SECOND} ended: compression; continued in {THIRD}
── compaction (not in effect): this summary replaces messages up to 6 in the context
    Packed.
"""


@pytest.mark.parametrize("name", [TRIP, SECOND, THIRD, "20260528_001", "Trip to Lisbon"])
def test_any_name_of_a_conversation_shows_its_whole_transcript(holdfast: Holdfast, trip: Path, name: str) -> None:
    assert holdfast("sessions", "show", name, "--db", trip) == (0, TRANSCRIPT, "")


def test_last_is_the_most_recently_active(holdfast: Holdfast, trip: Path) -> None:
    done = holdfast("sessions", "show", "last", "--db", trip)
    assert done.out.splitlines()[0] == "other"
    assert done.out.endswith("    hi\n    (image)\n")


def test_a_branch_shows_what_it_shares_and_where_it_begins(holdfast: Holdfast, trip: Path) -> None:
    lines = holdfast("sessions", "show", BRANCH, "--db", trip).out.splitlines()
    begins = lines.index(f"── the branch {BRANCH} begins")
    assert "    message 5" in lines[:begins]
    assert "    only in the branch" in lines[begins:]
    assert not any("message 6" in line or "goes on" in line for line in lines)


def test_context_is_what_the_model_sees(holdfast: Holdfast, trip: Path) -> None:
    out = holdfast("sessions", "show", TRIP, "--context", "--db", trip).out
    with SessionDB(trip) as db:
        seen = [(message.seq, message.role) for message in db.context(TRIP)]
    headings = [line.split() for line in out.splitlines()[2:] if line and not line.startswith(" ")]
    assert [(int(words[0]), words[1]) for words in headings] == seen
    assert "[pinned]" in out
    assert "[summary of everything up to 4]\n    They plan a trip." in out


def test_a_note_for_the_model_is_shown_only_with_what_the_model_sees(holdfast: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "noted.db"
    said = {"type": "text", "text": "Hello"}
    with SessionDB(path) as db:
        db.create_session("noted", source="test")
        db.append_message("noted", role="user", content=[content_parts.note("It is Sunday."), said])
        db.append_message("noted", role="assistant", content=[said, content_parts.cut("The answer broke off here.")])
    shown = holdfast("sessions", "show", "noted", "--db", path).out
    assert "Sunday" not in shown
    assert shown.count("    Hello\n") == 2
    assert "[The answer broke off here.]" in shown
    assert "    It is Sunday.\n    Hello\n" in holdfast("sessions", "show", "noted", "--context", "--db", path).out
    assert "Sunday" in holdfast("sessions", "show", "noted", "--json", "--db", path).out


def test_tail_shows_the_last_messages_only(holdfast: Holdfast, trip: Path) -> None:
    data = holdfast("sessions", "show", TRIP, "--tail", "3", "--json", "--db", trip).data
    assert [message["seq"] for message in data["messages"]] == [6, 7, 8]


def test_json_of_the_transcript_has_every_message_and_its_state(holdfast: Holdfast, trip: Path) -> None:
    data = holdfast("sessions", "show", TRIP, "--json", "--db", trip).data
    assert set(data) == {"conversation", "sessions", "compactions", "hides", "messages"}
    assert data["conversation"]["head_id"] == THIRD
    assert [session["id"] for session in data["sessions"]] == [TRIP, SECOND, THIRD]
    assert [compaction["cut_seq"] for compaction in data["compactions"]] == [4, 6]
    states = ["in the summary", "pinned", "in the summary", "in the summary", "", "hidden", "", ""]
    assert [message["state"] for message in data["messages"]] == states
    assert data["messages"][6]["tool_calls"] == [{"id": "c1", "name": "ls", "arguments": {"path": "/"}}]
    assert data["messages"][7]["tool_call_id"] == "c1"


def test_json_of_the_context_is_the_context(holdfast: Holdfast, trip: Path) -> None:
    data = holdfast("sessions", "show", TRIP, "--context", "--json", "--db", trip).data
    with SessionDB(trip) as db:
        context = db.context(TRIP)
    assert [message["content"] for message in data["messages"]] == [message.content for message in context]
    assert (data["epoch"], data["last_seq"], data["cut_seq"]) == (context.epoch, context.last_seq, context.cut_seq)
    assert data["compaction"]["summary"] == "They plan a trip."


def test_a_redacted_message_is_told_of(holdfast: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:
        db.redact(TRIP, 5)
    assert "5  user  2026-05-28 20:30  [redacted]\n\n6 " in holdfast("sessions", "show", TRIP, "--db", trip).out


def test_a_log_longer_than_one_stretch_is_shown_whole_and_in_order(holdfast: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "long.db"
    with SessionDB(path) as db:
        db.create_session("long", source="test")
        db.append_messages("long", [{"role": "user", "content": f"message {number}"} for number in range(1, 1201)])
    lines = holdfast("sessions", "show", "long", "--db", path).out.splitlines()
    assert [line for line in lines if line.startswith("    ")] == [f"    message {number}" for number in range(1, 1201)]


def test_escape_codes_in_messages_are_spelled_out(holdfast: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "hostile.db"
    with SessionDB(path) as db:
        db.create_session("hostile", source="test")
        db.append_message("hostile", role="user", content="\x1b[2J\x1b]8;;http://x\x07link\r\nnext\tline")
        db.append_message(
            "hostile", role="assistant", tool_calls=[{"id": "\x1b[1m", "name": "\x9b", "arguments": "\x07"}]
        )
    for arguments in ([], ["--context"], ["--json"], ["--context", "--json"]):
        done = holdfast("sessions", "show", "hostile", *arguments, "--db", path)
        assert done.code == 0
        assert not set(done.out) & set("\x1b\x07\x9b")
    assert "    next    line\n" in holdfast("sessions", "show", "hostile", "--db", path).out


def test_lines_are_wrapped_to_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "wide.db"
    with SessionDB(path) as db:
        db.create_session("wide", source="test")
        db.append_message("wide", role="user", content="word " * 100)
    shown = cli_process.run_in_terminal(tmp_path, "sessions", "show", "wide", "--db", path, columns=40)
    words = [line for line in shown.out.splitlines() if "word" in line]
    assert len(words) > 10
    assert all(len(line) <= 40 for line in words)


@pytest.mark.parametrize("command", ["show", "tree"])
def test_an_unknown_name_is_an_error_that_says_where_to_look(holdfast: Holdfast, trip: Path, command: str) -> None:
    done = holdfast("sessions", command, "nothing", "--db", trip)
    assert done.code == 1
    assert done.sentence == (
        "holdfast: There is no session 'nothing'. Run `holdfast sessions list` to list conversations, "
        "or `holdfast -r` to pick one."
    )


@pytest.mark.parametrize("name", ["\x1b[31m", "x" * 5000, "' OR 1=1 --", "../../etc/passwd", "\U0010ffff", " "])
def test_a_hostile_name_is_an_error_and_nothing_more(holdfast: Holdfast, trip: Path, name: str) -> None:
    done = holdfast("sessions", "show", name, "--db", trip)
    assert done.code == 1
    assert "\x1b" not in done.sentence
    assert len(done.sentence) < 500


@pytest.mark.parametrize("command", ["show", "tree"])
def test_an_ambiguous_prefix_lists_the_candidates(holdfast: Holdfast, trip: Path, command: str) -> None:
    done = holdfast("sessions", command, "2026", "--db", trip)
    assert done.code == 1
    assert TRIP in done.sentence
    assert BRANCH in done.sentence


def test_a_deleted_conversation_is_said_to_be_deleted(holdfast: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:
        db.delete_conversation("other")
    assert "was deleted" in holdfast("sessions", "show", "other", "--db", trip).sentence


def test_a_damaged_message_does_not_hide_the_others(holdfast: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:
        execute = db.driver._writer.execute  # type: ignore[attr-defined]
        execute("DROP TRIGGER message_is_only_redacted")
        execute("UPDATE messages SET body = '{broken' WHERE seq = 3")
    out = holdfast("sessions", "show", TRIP, "--db", trip).out
    assert "(This message is damaged. Run `holdfast doctor`.)" in out
    assert "    message 4\n" in out
    assert "cannot be read" in holdfast("sessions", "show", TRIP, "--json", "--db", trip).sentence


def test_json_has_the_metadata_of_conversation_and_messages(holdfast: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with SessionDB(path) as db:
        db.create_session("talk", source="test", metadata={"ticket": 4711})
        db.append_message("talk", role="user", content="hello", metadata={"channel": "mail"})
    shown = json.loads(holdfast("sessions", "show", "talk", "--db", path, "--json").out)
    assert shown["conversation"]["metadata"] == {"ticket": 4711}
    assert [message["metadata"] for message in shown["messages"]] == [{"channel": "mail"}]
    assert "4711" not in holdfast("sessions", "show", "talk", "--db", path, "--context").out
