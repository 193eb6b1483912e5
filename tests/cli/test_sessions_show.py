"""`sessions show` prints the whole log with the state of each message, or exactly the model's context."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import SessionDB
from tests.cli.conftest import BRANCH, SECOND, THIRD, TRIP
from tests.support import backends
from tests.support.cli_process import Holdfast

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
def test_any_name_of_a_conversation_shows_its_transcript(sessions: Holdfast, name: str) -> None:
    assert sessions("show", name) == (0, TRANSCRIPT, "")


def test_branch_shows_shared_messages_and_its_start(sessions: Holdfast) -> None:
    lines = sessions("show", BRANCH).out.splitlines()
    start = lines.index(f"── the branch {BRANCH} begins")
    assert "    message 5" in lines[:start]
    assert "    only in the branch" in lines[start:]
    assert not any("message 6" in line or "goes on" in line for line in lines)


def test_context_has_the_messages_sent_to_the_model(sessions: Holdfast, trip: Path) -> None:
    out = sessions("show", TRIP, "--context").out
    data = sessions("show", TRIP, "--context", "--json").data
    with SessionDB(trip) as db:
        context = db.context(TRIP)
    headings = [line.split() for line in out.splitlines()[2:] if line and not line.startswith(" ")]
    assert [(int(words[0]), words[1]) for words in headings] == [(each.seq, each.role) for each in context]
    assert "[pinned]" in out
    assert "[summary of everything up to 4]\n    They plan a trip." in out
    assert [message["content"] for message in data["messages"]] == [message.content for message in context]
    assert (data["epoch"], data["last_seq"], data["cut_seq"]) == (context.epoch, context.last_seq, context.cut_seq)
    assert data["compaction"]["summary"] == "They plan a trip."


def test_json_has_every_message_with_state_and_metadata(sessions: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:
        db.create_session("talk", source="test", metadata={"ticket": 4711})
        db.append_message("talk", role="user", content="hello", metadata={"channel": "mail"})
    data = sessions("show", TRIP, "--json").data
    assert set(data) == {"conversation", "sessions", "compactions", "hides", "messages"}
    assert data["conversation"]["head_id"] == THIRD
    assert [session["id"] for session in data["sessions"]] == [TRIP, SECOND, THIRD]
    assert [compaction["cut_seq"] for compaction in data["compactions"]] == [4, 6]
    states = ["in the summary", "pinned", "in the summary", "in the summary", "", "hidden", "", ""]
    assert [message["state"] for message in data["messages"]] == states
    assert data["messages"][6]["tool_calls"] == [{"id": "c1", "name": "ls", "arguments": {"path": "/"}}]
    assert data["messages"][7]["tool_call_id"] == "c1"
    tail = sessions("show", TRIP, "--tail", "3", "--json").data
    assert [message["seq"] for message in tail["messages"]] == [6, 7, 8]
    talk = sessions("show", "talk", "--json").data
    assert talk["conversation"]["metadata"] == {"ticket": 4711}
    assert talk["messages"][0]["metadata"] == {"channel": "mail"}
    assert "4711" not in sessions("show", "talk", "--context").out


def test_redacted_and_damaged_messages_do_not_hide_the_others(sessions: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:
        db.redact(TRIP, 5)
        backends.raw(db, "DROP TRIGGER message_is_only_redacted")
        backends.raw(db, "UPDATE messages SET body = '{broken' WHERE seq = 3")
    out = sessions("show", TRIP).out
    assert "5  user  2026-05-28 20:30  [redacted]\n\n6 " in out
    assert "(This message is damaged. Run `holdfast doctor`.)" in out
    assert "    message 4\n" in out
    assert "cannot be read" in sessions("show", TRIP, "--json").sentence


def test_long_log_is_shown_whole(holdfast: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "long.db"
    with SessionDB(path) as db:
        db.create_session("long", source="test")
        db.append_messages("long", [{"role": "user", "content": f"word {number}"} for number in range(1, 1201)])
    lines = holdfast("sessions", "show", "long", "--db", path).out.splitlines()
    assert [line for line in lines if line.startswith("    ")] == [f"    word {number}" for number in range(1, 1201)]


@pytest.mark.parametrize("arguments", [[], ["--context"], ["--json"], ["--context", "--json"]])
def test_control_characters_are_escaped(holdfast: Holdfast, tmp_path: Path, arguments: list[str]) -> None:
    path = tmp_path / "hostile.db"
    call = {"id": "\x1b[1m", "name": "\x9b", "arguments": "\x07"}
    with SessionDB(path) as db:
        db.create_session("hostile", source="test")
        db.append_message("hostile", role="user", content="\x1b[2J\x1b]8;;http://x\x07link\r\nnext\tline")
        db.append_message("hostile", role="assistant", tool_calls=[call])
    done = holdfast("sessions", "show", "hostile", *arguments, "--db", path)
    assert done.code == 0
    assert not set(done.out) & set("\x1b\x07\x9b")
    assert arguments or "    next    line\n" in done.out


@pytest.mark.parametrize("command", ["show", "tree"])
def test_unknown_ambiguous_or_deleted_name_is_an_error(sessions: Holdfast, trip: Path, command: str) -> None:
    def sentence(name: str) -> str:
        done = sessions(command, name)
        assert done.code == 1
        return done.sentence

    assert sentence("nothing") == (
        "holdfast: There is no session 'nothing'. Run `holdfast sessions list` to list conversations, "
        "or `holdfast -r` to pick one."
    )
    assert {TRIP, BRANCH} <= set(sentence("2026").replace(",", " ").replace("(", " ").split())
    with SessionDB(trip) as db:
        db.delete_conversation("other")
    assert "was deleted" in sentence("other")
    for hostile in ("\x1b[31m", "x" * 5000, "' OR 1=1 --", "\U0010ffff", " "):
        assert "\x1b" not in sentence(hostile)
        assert len(sentence(hostile)) < 500
