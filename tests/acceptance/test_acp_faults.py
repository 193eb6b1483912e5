"""`holdfast acp` with editors that die, send invalid frames, cancel, or share a session."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from holdfast import SessionDB, content_parts, types
from tests.acceptance import editor
from tests.acceptance.installation import PATIENCE
from tests.support import polling, provider_process

HELLO = "Hello there"


def stored_texts(home: Path, session: str, role: str = "user") -> list[str]:
    """Return the texts of this role in the store, after checking the store."""
    with SessionDB(home / "data" / "holdfast.db") as db:
        assert db.admin.fsck().ok
        return [content_parts.text(each.content) for each in db.transcript(session) if each.role == role]


def disable_review(home: Path) -> None:
    """Write settings without memory review, so that the model gets no other requests."""
    (home / "data").mkdir()
    (home / "data" / "config.toml").write_text("[memory]\nreview = false\n")


def start_command(made: editor.Editor, session: str) -> tuple[int, int]:
    """Start a turn whose command runs; return the request id of its prompt and the process id."""
    file = made.home / "pid"
    file.unlink(missing_ok=True)
    number = made.prompt(session, "run `echo $$ > pid; exec sleep 600`")
    made.until(lambda: file.exists() and file.read_text().endswith("\n"))
    return number, int(file.read_text())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


# --- killed processes -----------------------------------------------------------------------------------


def test_editor_killed_in_a_turn_leaves_no_process_and_loses_no_message(tmp_path: Path) -> None:
    with editor.open_editor(tmp_path) as first:
        session = first.new()
        assert first.stopped(session, HELLO) == "end_turn"
        _, child = start_command(first, session)
        first.vanish()
        assert first.process.wait(PATIENCE) == 0
        polling.until(lambda: not alive(child))
    assert stored_texts(tmp_path, session)[0] == HELLO
    with editor.open_editor(tmp_path) as second:
        second.load(session)
        assert HELLO in second.text(session, "user_message_chunk")
        assert [call["status"] for call in second.calls(session).values()] == ["failed"]
        assert second.stopped(session, HELLO) == "end_turn"


def test_agent_killed_in_a_turn_loses_no_message(tmp_path: Path) -> None:
    disable_review(tmp_path)
    answers = (
        provider_process.reply("First."),
        provider_process.hanging_reply("Once ", "upon "),
        provider_process.reply("Again."),
    )
    with provider_process.serve(*answers) as played:
        with editor.open_editor(tmp_path, env=played.env) as first:
            session = first.new()
            assert first.stopped(session, HELLO) == "end_turn"
            first.prompt(session, "Tell me a story")
            first.until(lambda: "upon" in first.text(session))
            first.process.send_signal(signal.SIGKILL)
            first.process.wait(PATIENCE)
        with editor.open_editor(tmp_path, env=played.env) as second:
            second.load(session)
            asked = second.text(session, "user_message_chunk")
            assert asked.index(HELLO) < asked.index("Tell me a story")
            assert "First." in second.text(session)
            assert second.stopped(session, "Go on") == "end_turn"
            assert second.text(session).endswith("Again.")
    assert stored_texts(tmp_path, session) == [HELLO, "Tell me a story", "Go on"]


def test_agent_killed_in_a_tool_leaves_a_failed_call(tmp_path: Path) -> None:
    with editor.open_editor(tmp_path) as first:
        session = first.new()
        _, child = start_command(first, session)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(PATIENCE)
    with editor.open_editor(tmp_path) as second:
        second.load(session)
        assert second.stopped(session, HELLO) == "end_turn"
    with editor.open_editor(tmp_path) as third:
        third.load(session)
        (call,) = third.calls(session).values()
        assert call["status"] == "failed"
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        (result,) = (each for each in db.context(session) if each.role == "tool")
        assert "ended before it finished" in content_parts.text(result.content)
    polling.until(lambda: not alive(child))


def test_end_of_input_stops_the_turn_and_the_program(tmp_path: Path) -> None:
    with editor.open_editor(tmp_path) as made:
        session = made.new()
        _, child = start_command(made, session)
    polling.until(lambda: not alive(child))
    assert len(stored_texts(tmp_path, session)) == 1


def test_sigterm_ends_the_program_and_keeps_the_partial_answer(tmp_path: Path) -> None:
    with (
        provider_process.serve(provider_process.hanging_reply("Once ", "upon ")) as played,
        editor.open_editor(tmp_path, env=played.env) as made,
    ):
        session = made.new()
        made.prompt(session, HELLO)
        made.until(lambda: "upon" in made.text(session))
        made.process.send_signal(signal.SIGTERM)
        assert made.process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert stored_texts(tmp_path, session) == [HELLO]
    assert stored_texts(tmp_path, session, "assistant")[0].startswith("Once upon ")


def test_editor_killed_during_a_permission_request_allows_nothing(tmp_path: Path) -> None:
    with editor.open_editor(tmp_path, permit=lambda _: None) as made:
        session = made.new()
        made.prompt(session, "run `touch never.txt`")
        made.until(made.asked)
        made.vanish()
        assert made.process.wait(PATIENCE) == 0
    assert not (tmp_path / "never.txt").exists()
    assert stored_texts(tmp_path, session) == ["run `touch never.txt`"]


NOISE = """
import os, sys, threading, time
def noise():
    while "holdfast.app.acp" not in sys.modules:
        time.sleep(0.01)
    for _ in range(20):
        print("noise", flush=True)
        os.write(1, b"more noise\\n")
        os.system("echo and noise")
        time.sleep(0.01)
if "acp" in sys.argv:
    threading.Thread(target=noise, daemon=True).start()
"""


def test_prints_and_logs_go_to_standard_error_only(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    # An installed package that is loaded with the interpreter and prints while the program runs.
    (tmp_path / "site" / "sitecustomize.py").write_text(NOISE)
    heard = tmp_path / "heard.txt"
    noisy = {"PYTHONPATH": str(tmp_path / "site")}
    with editor.open_editor(tmp_path, "--log-level", "debug", env=noisy, stderr=heard) as made:
        session = made.new()
        assert made.stopped(session, "run `echo to the one; echo to the other >&2`") == "end_turn"
        assert "to the other" in made.text(session)
        made.until(lambda: heard.read_text().count("and noise") == 20)
    assert heard.read_text().count("noise") == 60


# --- two editors -------------------------------------------------------------------------------------


def test_two_editors_on_one_session_take_turns(tmp_path: Path) -> None:
    with editor.open_editor(tmp_path) as one, editor.open_editor(tmp_path) as other:
        session = one.new()
        assert one.stopped(session, HELLO) == "end_turn"
        other.load(session)
        assert HELLO in other.text(session, "user_message_chunk")
        first, _ = start_command(one, session)
        second = other.prompt(session, "A word from the other side")
        # The other one is served meanwhile, whether or not its prompt waits.
        assert other.ask("session/list")["sessions"][0]["sessionId"] == session
        one.notify("session/cancel", sessionId=session)
        assert one.answer(first)["stopReason"] == "cancelled"
        assert other.answer(second)["stopReason"] == "end_turn"
        assert one.stopped(session, "And one more") == "end_turn"
    assert [body for body in stored_texts(tmp_path, session) if "run `" not in body] == [
        HELLO,
        "A word from the other side",
        "And one more",
    ]


def test_session_compacted_by_one_editor_continues_in_the_other(tmp_path: Path) -> None:
    with editor.open_editor(tmp_path) as one, editor.open_editor(tmp_path) as other:
        session = one.new()
        for number in range(6):
            one.stopped(session, f"The harbour of {number} has {number * 7} boats in it. " * 40)
        other.load(session)
        assert one.stopped(session, "/compact here 1") == "end_turn"
        assert "Compacted up to message" in one.text(session)
        assert other.stopped(session, HELLO) == "end_turn"
        assert one.stopped(session, "And one more") == "end_turn"
        # The message to the other editor is reported to this one.
        one.until(lambda: HELLO in one.text(session, "user_message_chunk"))
    assert stored_texts(tmp_path, session)[-2:] == [HELLO, "And one more"]
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        assert len(db.compactions(session)) == 1


# --- large sessions ------------------------------------------------------------------------------------


def test_resource_of_8_mb_is_stored_and_replayed_unchanged(tmp_path: Path) -> None:
    lines = "\n".join(f"{number}: the quick brown fox jumps over the lazy dog" for number in range(180_000))
    assert len(lines) > 8 << 20
    resource = {"type": "resource", "resource": {"uri": "file:///huge.log", "mimeType": "text/plain", "text": lines}}
    with editor.open_editor(tmp_path) as first:
        session = first.new()
        assert first.stopped(session, "Look at this.", resource) == "end_turn"
        assert first.stopped(session, HELLO) == "end_turn"
    assert lines in stored_texts(tmp_path, session)[0]
    with editor.open_editor(tmp_path) as second:
        second.load(session)
        shown = [each["content"] for each in second.updates(session, "user_message_chunk")]
        (again,) = [each["resource"] for each in shown if each["type"] == "resource"]
        assert (again["uri"], again["text"] == lines) == ("file:///huge.log", True)
        assert second.stopped(session, HELLO) == "end_turn"


def test_load_replays_a_long_session_before_it_responds(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        db.create_session("long", source="test")
        said = [
            types.NewMessage(role="user" if number % 2 else "assistant", content=f"Message {number}.")
            for number in range(1, 1001)
        ]
        db.append_messages("long", said)
    with editor.open_editor(tmp_path) as made:
        number = made.begin("session/load", sessionId="long", cwd=str(tmp_path), mcpServers=[])
        made.answer(number)
        place = next(i for i, frame in enumerate(made.frames) if frame.get("id") == number)
        updates = [
            frame["params"]["update"] for frame in made.frames[:place] if frame.get("method") == "session/update"
        ]
        assert [each["content"]["text"] for each in updates if each["sessionUpdate"].endswith("_message_chunk")] == [
            each.content for each in said
        ]
