"""What goes wrong between an editor and `holdfast acp`: who is killed, what is no frame, what is too much.

The protocol's errors are the answer, nothing that was said is lost, and standard output carries frames only.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import SessionDB, content_parts, types
from tests.acceptance import editor
from tests.acceptance.conftest import PATIENCE
from tests.support import polling, provider_process

HELLO = "Hello there"


def bodies(home: Path, session: str, role: str = "user") -> list[str]:
    """What was said, as it is in the store, which is sound."""
    with SessionDB(home / "data" / "holdfast.db") as db:
        assert db.admin.fsck().ok
        return [content_parts.text(each.content) for each in db.transcript(session) if each.role == role]


def quietly(home: Path) -> None:
    """Settings in which a model is asked for answers, and for nothing else."""
    (home / "data").mkdir()
    (home / "data" / "config.toml").write_text("[memory]\nreview = false\n")


def running(made: editor.Editor, session: str) -> tuple[int, int]:
    """A turn whose command has begun: the number of its prompt, and the process."""
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


# --- who is killed -----------------------------------------------------------------------------------


def test_an_editor_that_is_killed_in_a_turn_leaves_nothing_running_and_loses_nothing(tmp_path: Path) -> None:
    with editor.opened(tmp_path) as first:
        first.open()
        session = first.new()
        assert first.stopped(session, HELLO) == "end_turn"
        _, child = running(first, session)
        first.vanish()
        assert first.process.wait(PATIENCE) == 0
        polling.until(lambda: not alive(child))
    assert bodies(tmp_path, session)[0] == HELLO
    with editor.opened(tmp_path) as second:
        second.open()
        second.load(session)
        assert HELLO in second.text(session, "user_message_chunk")
        assert [call["status"] for call in second.calls(session).values()] == ["failed"]
        assert second.stopped(session, HELLO) == "end_turn"
        assert second.leave() == 0


def test_an_agent_that_is_killed_in_a_turn_is_followed_by_another_that_loses_nothing(tmp_path: Path) -> None:
    quietly(tmp_path)
    answers = (
        provider_process.said("First."),
        provider_process.said_and_hung("Once ", "upon "),
        provider_process.said("Again."),
    )
    with provider_process.playing(*answers) as played:
        with editor.opened(tmp_path, env=played.env) as first:
            first.open()
            session = first.new()
            assert first.stopped(session, HELLO) == "end_turn"
            first.prompt(session, "Tell me a story")
            first.until(lambda: "upon" in first.text(session))
            first.process.send_signal(signal.SIGKILL)
            first.process.wait(PATIENCE)
        with editor.opened(tmp_path, env=played.env) as second:
            second.open()
            second.load(session)
            asked = second.text(session, "user_message_chunk")
            assert asked.index(HELLO) < asked.index("Tell me a story")
            assert "First." in second.text(session)
            assert second.stopped(session, "Go on") == "end_turn"
            assert second.text(session).endswith("Again.")
            assert second.leave() == 0
    assert bodies(tmp_path, session) == [HELLO, "Tell me a story", "Go on"]


def test_an_agent_that_is_killed_in_a_tool_leaves_a_call_that_is_closed(tmp_path: Path) -> None:
    with editor.opened(tmp_path) as first:
        first.open()
        session = first.new()
        _, child = running(first, session)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(PATIENCE)
    with editor.opened(tmp_path) as second:
        second.open()
        second.load(session)
        assert second.stopped(session, HELLO) == "end_turn"
        assert second.leave() == 0
    with editor.opened(tmp_path) as third:
        third.open()
        third.load(session)
        (call,) = third.calls(session).values()
        assert call["status"] == "failed"
        assert third.leave() == 0
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        (result,) = (each for each in db.context(session) if each.role == "tool")
        assert "ended before it finished" in content_parts.text(result.content)
    polling.until(lambda: not alive(child))


def test_the_end_of_the_input_ends_a_turn_and_the_program(tmp_path: Path) -> None:
    with editor.opened(tmp_path) as made:
        made.open()
        session = made.new()
        _, child = running(made, session)
        assert made.leave() == 0
    polling.until(lambda: not alive(child))
    assert len(bodies(tmp_path, session)) == 1


def test_a_signal_ends_it_and_what_was_said_stays(tmp_path: Path) -> None:
    with (
        provider_process.playing(provider_process.said_and_hung("Once ", "upon ")) as played,
        editor.opened(tmp_path, env=played.env) as made,
    ):
        made.open()
        session = made.new()
        made.prompt(session, HELLO)
        made.until(lambda: "upon" in made.text(session))
        made.process.send_signal(signal.SIGTERM)
        assert made.process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert bodies(tmp_path, session) == [HELLO]
    assert bodies(tmp_path, session, "assistant")[0].startswith("Once upon ")


def test_opening_and_leaving_leaves_nothing_behind(tmp_path: Path) -> None:
    with editor.opened(tmp_path) as made:
        made.open()
        made.new()
        assert made.ask("session/list")["sessions"] == []
        assert made.leave() == 0
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        assert db.list_sessions() == []


def test_an_editor_that_is_killed_while_a_person_is_asked_has_allowed_nothing(tmp_path: Path) -> None:
    with editor.opened(tmp_path, permit=lambda _: None) as made:
        made.open()
        session = made.new()
        made.prompt(session, "run `touch never.txt`")
        made.until(made.asked)
        made.vanish()
        assert made.process.wait(PATIENCE) == 0
    assert not (tmp_path / "never.txt").exists()
    assert bodies(tmp_path, session) == ["run `touch never.txt`"]


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


def test_whoever_prints_or_logs_reaches_standard_error_only(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    # A part that somebody installed: it is loaded with the interpreter, and prints while the program is at work.
    (tmp_path / "site" / "sitecustomize.py").write_text(NOISE)
    heard = tmp_path / "heard.txt"
    noisy = {"PYTHONPATH": str(tmp_path / "site")}
    with editor.opened(tmp_path, "--log-level", "debug", env=noisy, stderr=heard) as made:
        made.open()
        session = made.new()
        assert made.stopped(session, "run `echo to the one; echo to the other >&2`") == "end_turn"
        assert "to the other" in made.text(session)
        made.until(lambda: heard.read_text().count("and noise") == 20)
        assert made.leave() == 0
    assert heard.read_text().count("noise") == 60


def test_calls_that_a_provider_names_alike_are_told_apart(tmp_path: Path) -> None:
    quietly(tmp_path)
    read = provider_process.called("read_file", '{"path": "notes.txt"}')
    (tmp_path / "notes.txt").write_text("Buy milk.")
    with provider_process.playing(read, provider_process.said("One."), read, provider_process.said("Two.")) as played:
        with editor.opened(tmp_path, env=played.env) as first:
            first.open()
            session = first.new()
            assert first.stopped(session, "Read it") == "end_turn"
            assert first.stopped(session, "Read it again") == "end_turn"
            assert [call["status"] for call in first.calls(session).values()] == ["completed"] * 2
            assert first.leave() == 0
        with editor.opened(tmp_path, env=played.env) as second:
            second.open()
            second.load(session)
            assert [call["status"] for call in second.calls(session).values()] == ["completed"] * 2
            assert second.leave() == 0


# --- stopped at any moment -----------------------------------------------------------------------------


def test_a_cancel_that_comes_with_its_prompt_is_not_missed(tmp_path: Path) -> None:
    quietly(tmp_path)
    rounds = 5
    with (
        provider_process.playing(*[provider_process.said_and_hung("Once ")] * rounds) as played,
        editor.opened(tmp_path, env=played.env) as made,
    ):
        made.open()
        session = made.new()
        for number in range(rounds):
            asked = made.prompt(session, f"Tell me story {number}")
            if number % 2:
                before = len(made.text(session))
                made.until(lambda before=before: len(made.text(session)) > before)
            made.notify("session/cancel", sessionId=session)
            assert made.answer(asked)["stopReason"] == "cancelled"
        assert made.leave() == 0


def test_a_request_that_is_not_wanted_any_more_is_cancelled(tmp_path: Path) -> None:
    with editor.opened(tmp_path) as made:
        made.open()
        session = made.new()
        number, child = running(made, session)
        made.notify("$/cancel_request", requestId=number)
        assert made.answer(number)["stopReason"] == "cancelled"
        polling.until(lambda: not alive(child))
        assert made.stopped(session, HELLO) == "end_turn"
        assert made.leave() == 0


# --- two editors -------------------------------------------------------------------------------------


def test_two_editors_on_one_conversation_take_turns_and_lose_nothing(tmp_path: Path) -> None:
    with editor.opened(tmp_path) as one, editor.opened(tmp_path) as other:
        one.open()
        other.open()
        session = one.new()
        assert one.stopped(session, HELLO) == "end_turn"
        other.load(session)
        assert HELLO in other.text(session, "user_message_chunk")
        first, _ = running(one, session)
        second = other.prompt(session, "A word from the other side")
        # The other one is served meanwhile, whether or not its prompt waits.
        assert other.ask("session/list")["sessions"][0]["sessionId"] == session
        one.notify("session/cancel", sessionId=session)
        assert one.answer(first)["stopReason"] == "cancelled"
        assert other.answer(second)["stopReason"] == "end_turn"
        assert one.stopped(session, "And one more") == "end_turn"
        assert (one.leave(), other.leave()) == (0, 0)
    assert [body for body in bodies(tmp_path, session) if "run `" not in body] == [
        HELLO,
        "A word from the other side",
        "And one more",
    ]


def test_what_one_editor_compacts_goes_on_in_the_other(tmp_path: Path) -> None:
    with editor.opened(tmp_path) as one, editor.opened(tmp_path) as other:
        one.open()
        other.open()
        session = one.new()
        for number in range(6):
            one.stopped(session, f"The harbour of {number} has {number * 7} boats in it. " * 40)
        other.load(session)
        assert one.stopped(session, "/compact here 1") == "end_turn"
        assert "Compacted up to message" in one.text(session)
        assert other.stopped(session, HELLO) == "end_turn"
        assert one.stopped(session, "And one more") == "end_turn"
        # What was said in the one is told in the other.
        one.until(lambda: HELLO in one.text(session, "user_message_chunk"))
        assert (one.leave(), other.leave()) == (0, 0)
    assert bodies(tmp_path, session)[-2:] == [HELLO, "And one more"]
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        assert len(db.compactions(session)) == 1


def test_two_sessions_of_one_process_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with editor.opened(tmp_path) as made:
        made.open()
        slow, quick = made.new(), made.new()
        first, _ = running(made, slow)
        assert made.stopped(quick, HELLO) == "end_turn"
        made.notify("session/cancel", sessionId=slow)
        assert made.answer(first)["stopReason"] == "cancelled"
        assert made.wire.open_calls(slow) == set()
        assert made.leave() == 0
    assert bodies(tmp_path, quick) == [HELLO]


def test_a_second_prompt_during_a_turn_is_not_lost(tmp_path: Path) -> None:
    with editor.opened(tmp_path) as made:
        made.open()
        session = made.new()
        first, child = running(made, session)
        second = made.prompt(session, "What was queued")
        os.kill(child, signal.SIGTERM)
        assert made.answer(first)["stopReason"] == "end_turn"
        assert made.answer(second)["stopReason"] == "end_turn"
        assert made.leave() == 0
    assert bodies(tmp_path, session)[-1] == "What was queued"


# --- what is no frame --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[editor.Editor]:
    """One program for all that is wrong: it lives through each of them."""
    with editor.opened(tmp_path_factory.mktemp("talker")) as made:
        made.open()
        yield made
        made.new()
        assert made.leave() == 0
        assert "Traceback" not in (made.home / "stderr.txt").read_text()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"nonsense", -32700),
        (b'{"jsonrpc": "2.0", "id": 900', -32700),
        (b'\xff\xfe{"jsonrpc"', -32700),
        (b'{"jsonrpc": "2.0", "id": 901, "method": "session/list", "params": {}} trailing', -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc": "2.0", "id": 902, "method": "session/list", "params": {}}]', -32600),
        (b"7", -32600),
        (b'"text"', -32600),
        (b"null", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc": "2.0", "id": {"a": 1}, "method": "session/list"}', -32600),
        (b'{"jsonrpc": "2.0", "method": 7}', -32600),
        (b"[" * 100_000, -32700),
        (b'{"jsonrpc": "2.0", "method": "' + b"x" * (65 << 20) + b'"}', -32600),
    ],
    ids=lambda each: repr(each[:40]) if isinstance(each, bytes) else str(each),
)
def test_what_is_no_message_gets_the_protocols_error_and_harms_nobody(
    talker: editor.Editor, line: bytes, code: int
) -> None:
    def nameless() -> list[int]:
        return [each["error"]["code"] for each in talker.frames if "error" in each and each["id"] is None]

    before = len(nameless())
    talker.raw(line)
    talker.until(lambda: len(nameless()) > before)
    assert nameless()[before:] == [code]
    assert "sessions" in talker.ask("session/list")


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("session/dance", {}, -32601),
        ("session/new", {}, -32602),
        ("session/new", {"cwd": 7, "mcpServers": []}, -32602),
        ("session/new", {"cwd": "not/absolute", "mcpServers": []}, -32602),
        ("session/prompt", {"sessionId": "nobody"}, -32602),
        ("session/prompt", {"sessionId": "nobody", "prompt": [{"type": "smell"}]}, -32602),
        ("session/prompt", {"sessionId": "nobody", "prompt": []}, -32002),
        ("session/load", {"sessionId": "nobody", "cwd": "/", "mcpServers": []}, -32002),
        ("session/resume", {"sessionId": "nobody", "cwd": "/", "mcpServers": []}, -32002),
        ("session/fork", {"sessionId": "nobody", "cwd": "/", "mcpServers": []}, -32002),
        ("session/close", {"sessionId": "nobody"}, -32002),
        ("session/set_mode", {"sessionId": "nobody", "modeId": "ask"}, -32002),
        ("session/set_config_option", {"sessionId": "nobody", "configId": "model", "value": "x"}, -32002),
        ("session/list", {"cursor": "nonsense"}, -32602),
        ("authenticate", {"methodId": "nothing"}, -32602),
        ("initialize", {"protocolVersion": "one"}, -32602),
    ],
)
def test_what_cannot_be_done_is_refused_by_the_protocols_code(
    talker: editor.Editor, method: str, params: editor.Frame, code: int
) -> None:
    with pytest.raises(editor.Refused) as refused:
        talker.ask(method, **params)
    assert refused.value.code == code
    assert "Traceback" not in refused.value.message


@pytest.mark.parametrize("method", ["session/cancel", "$/cancel_request", "$/anything", "session/dance"])
def test_a_notification_is_never_answered(talker: editor.Editor, method: str) -> None:
    before = len(talker.frames)
    talker.notify(method, sessionId="nobody", requestId=12345)
    talker.ask("session/list")
    assert len(talker.frames) == before + 1


def test_answers_to_nothing_are_ignored(talker: editor.Editor) -> None:
    before = len(talker.frames)
    talker.raw(b'{"jsonrpc": "2.0", "id": 4711, "result": {"outcome": {"outcome": "cancelled"}}}')
    talker.raw(b'{"jsonrpc": "2.0", "id": "x", "error": {"code": -32603, "message": "no"}}')
    talker.ask("session/list")
    assert len(talker.frames) == before + 1


# --- what is much ------------------------------------------------------------------------------------


def test_a_huge_resource_is_kept_whole_and_comes_back(tmp_path: Path) -> None:
    lines = "\n".join(f"{number}: the quick brown fox jumps over the lazy dog" for number in range(180_000))
    assert len(lines) > 8 << 20
    resource = {"type": "resource", "resource": {"uri": "file:///huge.log", "mimeType": "text/plain", "text": lines}}
    with editor.opened(tmp_path) as first:
        first.open()
        session = first.new()
        assert first.stopped(session, "Look at this.", resource) == "end_turn"
        assert first.stopped(session, HELLO) == "end_turn"
        assert first.leave() == 0
    assert lines in bodies(tmp_path, session)[0]
    with editor.opened(tmp_path) as second:
        second.open()
        second.load(session)
        shown = [each["content"] for each in second.updates(session, "user_message_chunk")]
        (again,) = [each["resource"] for each in shown if each["type"] == "resource"]
        assert (again["uri"], again["text"] == lines) == ("file:///huge.log", True)
        assert second.stopped(session, HELLO) == "end_turn"
        assert second.leave() == 0


def test_a_long_conversation_is_replayed_whole_before_its_load_is_answered(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        db.create_session("long", source="test")
        said = [
            types.NewMessage(role="user" if number % 2 else "assistant", content=f"Message {number}.")
            for number in range(1, 1001)
        ]
        db.append_messages("long", said)
    with editor.opened(tmp_path) as made:
        made.open()
        number = made.begin("session/load", sessionId="long", cwd=str(tmp_path), mcpServers=[])
        made.answer(number)
        place = next(i for i, frame in enumerate(made.frames) if frame.get("id") == number)
        told = [frame["params"]["update"] for frame in made.frames[:place] if frame.get("method") == "session/update"]
        assert [each["content"]["text"] for each in told if each["sessionUpdate"].endswith("_message_chunk")] == [
            each.content for each in said
        ]
        assert made.leave() == 0
