"""`holdfast acp` with editors that die, send invalid frames, cancel, or share a session."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from holdfast.rpc import frames
from tests.acceptance import editor
from tests.support import cli_process, polling, provider_process
from tests.support.acp_editor import result

HELLO = "Hello there"


def stored_texts(home: Path, wanted: str = "user") -> list[str]:
    return [text for role, text in cli_process.read_log(home) if role == wanted]


async def start_command(made: editor.ProcessEditor, session: str) -> tuple[asyncio.Future[Any], int]:
    """Start a turn whose command runs; return the future of its response and the process id."""
    file = made.home / "pid"
    prompting = made.prompting(session, "run `echo $$ > pid; exec sleep 600`")
    await polling.until_async(lambda: file.exists() and file.read_text().endswith("\n"))
    return prompting, int(file.read_text())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


async def test_editor_killed_in_a_turn_leaves_no_process_and_loses_no_message(tmp_path: Path) -> None:
    async with editor.open_editor(tmp_path) as first:
        session = await first.new(str(tmp_path))
        assert await first.prompt(session, HELLO) == "end_turn"
        _, child = await start_command(first, session)
        first.vanish()
        assert await first.process.wait() == 0
        await polling.until_async(lambda: not alive(child))
    assert stored_texts(tmp_path)[0] == HELLO
    async with editor.open_editor(tmp_path) as second:
        await second.load(session)
        assert HELLO in second.text("user_message_chunk")
        assert [*second.statuses().values()] == ["failed"]
        assert await second.prompt(session, HELLO) == "end_turn"


async def test_sigterm_ends_the_program_and_keeps_the_partial_answer(tmp_path: Path) -> None:
    with provider_process.serve(provider_process.hanging_reply("Once ", "upon ")) as played:
        async with editor.open_editor(tmp_path, env=played.env) as made:
            session = await made.new(str(tmp_path))
            made.prompting(session, HELLO)
            await polling.until_async(lambda: "upon" in made.text())
            made.process.send_signal(signal.SIGTERM)
            assert await made.process.wait() == 128 + signal.SIGTERM
    assert stored_texts(tmp_path) == [HELLO]
    assert stored_texts(tmp_path, "assistant")[0].startswith("Once upon ")


async def test_editor_killed_during_a_permission_request_allows_nothing(tmp_path: Path) -> None:
    async with editor.open_editor(tmp_path) as made:
        made.answer = lambda _: None
        session = await made.new(str(tmp_path))
        made.prompting(session, "run `touch never.txt`")
        await made.wait_question()
        made.vanish()
        assert await made.process.wait() == 0
    assert not (tmp_path / "never.txt").exists()
    assert stored_texts(tmp_path) == ["run `touch never.txt`"]


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


async def test_prints_and_logs_go_to_standard_error_only(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    # An installed package that is loaded with the interpreter and prints while the program runs.
    (tmp_path / "site" / "sitecustomize.py").write_text(NOISE)
    heard = tmp_path / "heard.txt"
    noisy = {"PYTHONPATH": str(tmp_path / "site")}
    async with editor.open_editor(tmp_path, "--log-level", "debug", env=noisy, stderr=heard) as made:
        session = await made.new(str(tmp_path))
        assert await made.prompt(session, "run `echo to the one; echo to the other >&2`") == "end_turn"
        assert "to the other" in made.text()
        await polling.until_async(lambda: heard.read_text().count("and noise") == 20)
    assert heard.read_text().count("noise") == 60


async def test_two_editors_on_one_session_take_turns(tmp_path: Path) -> None:
    async with editor.open_editor(tmp_path) as one, editor.open_editor(tmp_path) as other:
        session = await one.new(str(tmp_path))
        assert await one.prompt(session, HELLO) == "end_turn"
        await other.load(session)
        assert HELLO in other.text("user_message_chunk")
        first, _ = await start_command(one, session)
        second = other.prompting(session, "A word from the other side")
        # The other one is served meanwhile, whether or not its prompt waits.
        assert (await other.ask("session/list"))["sessions"][0]["sessionId"] == session
        one.notify("session/cancel", sessionId=session)
        assert [result(await each)["stopReason"] for each in (first, second)] == ["cancelled", "end_turn"]
        assert await one.prompt(session, "And one more") == "end_turn"
    assert [body for body in stored_texts(tmp_path) if "run `" not in body] == [
        HELLO,
        "A word from the other side",
        "And one more",
    ]


async def test_resource_larger_than_the_default_frame_is_stored_and_replayed_unchanged(tmp_path: Path) -> None:
    text = "".join(f"{number:15}\n" for number in range(frames.DEFAULT_LIMITS.max_bytes // 15))
    resource = {"type": "resource", "resource": {"uri": "file:///huge.log", "text": text}}
    async with editor.open_editor(tmp_path) as made:
        session = await made.new(str(tmp_path))
        answer = await made.ask("session/prompt", sessionId=session, prompt=[resource])
        assert answer["stopReason"] == "end_turn"
        await made.load(session)
        (replayed,) = made.received("user_message_chunk")
        assert replayed["content"]["resource"]["text"] == text
    assert text in stored_texts(tmp_path)[0]
