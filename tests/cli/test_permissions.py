"""Permissions in the chat and in scripts, and `holdfast audit`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from holdfast import SessionDB
from holdfast.agent import approvals
from tests.support import replay_server
from tests.support.cli_process import Configure, Holdfast
from tests.support.provider_process import Provider, reply, serve, tool_call
from tests.support.pty_terminal import open_terminal

ENTER = "\r"
# The space behind a prompt is drawn by moving the cursor.
QUESTION = "n no, d details >"
NO_REVIEW = "[memory]\nreview = false\n"


def run_command(command: str) -> replay_server.Answer:
    return tool_call("shell", json.dumps({"command": command}))


def last_result(provider: Provider) -> str:
    """Return the result of the last tool call that the model received."""
    return str(json.loads(provider.asked[-1].body)["messages"][-1]["content"])


def read_audit(home: Path) -> list[tuple[str, bool, str]]:
    with SessionDB(home / "data" / "holdfast.db") as db:
        return [(each.summary, each.allowed, each.by) for each in reversed(db.permissions.audit_log())]


@pytest.fixture(autouse=True)
def _no_review(configure: Configure) -> None:
    configure(NO_REVIEW)


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_yes_runs_the_command_and_no_is_sent_with_its_reason(tmp_path: Path, term: str) -> None:
    with (
        serve(run_command("touch made"), run_command("touch more"), reply("Well.")) as provider,
        open_terminal(tmp_path, env={**provider.env, "TERM": term}, columns=200) as screen,
    ):
        screen.enter("go")
        screen.wait_for("touch made")
        screen.wait_for(QUESTION)
        assert not (tmp_path / "made").exists()
        screen.type(f"perhaps{ENTER}")
        screen.wait_for("Type y, c, a, n or d")
        screen.wait_for(QUESTION)
        screen.type(f"y{ENTER}")
        screen.wait_for("Allowed (at the terminal: once).")
        screen.wait_for(QUESTION)
        screen.type(f"n one is enough{ENTER}")
        screen.wait_for("Denied (at the terminal: no).")
        screen.wait_for("Well.")
        if term != "dumb":  # A line that is no answer returns to the prompt.
            screen.wait_for("> perhaps")
            screen.type("\x15")
        assert screen.leave() == 0
        assert "They said: one is enough" in last_result(provider)
    assert ((tmp_path / "made").exists(), (tmp_path / "more").exists()) == (True, False)
    made, more = read_audit(tmp_path)
    assert made == ("touch made", True, "at the terminal: once")
    assert more == ("touch more", False, "at the terminal: no")


def test_question_shows_danger_and_all_of_a_long_command(tmp_path: Path) -> None:
    command = "\n".join(["rm -rf build/*", *(f"echo {number}" for number in range(30)), "echo the-end"])
    with (
        serve(run_command(command), reply("Well.")) as provider,
        open_terminal(tmp_path, env=provider.env, columns=200) as screen,
    ):
        screen.enter("go")
        screen.wait_for("20 more lines (d shows all)")
        screen.wait_for("It removes build/* without asking.")
        screen.wait_for(QUESTION)
        screen.type(f"d{ENTER}")
        screen.wait_for("  echo the-end")
        screen.wait_for(QUESTION)
        screen.type(f"n{ENTER}")
        screen.wait_for("Well.")
        assert screen.leave() == 0
        assert "\x1b[31mIt removes build/*" in screen.raw


@pytest.mark.parametrize(
    ("rule", "yes", "line", "audited"),
    [
        ("", False, "touch made", (False, "no approver")),
        ("", True, "touch made", (True, "--yes")),
        ('deny = ["shell(touch made)"]', True, "touch made", (False, "rule: deny shell(touch made)")),
        ("", True, "PATH=. touch made", (False, "--yes")),
        ('allow = ["shell(touch)"]', False, "touch made", (True, "rule: allow shell(touch)")),
    ],
    ids=["asked", "--yes", "denied", "dangerous", "allowed"],
)
def test_script_runs_only_allowed_commands(
    holdfast: Holdfast, tmp_path: Path, configure: Configure, rule: str, yes: bool, line: str, audited: tuple[bool, str]
) -> None:
    configure(f"{NO_REVIEW}[permissions]\n{rule}\n")
    with serve(run_command(line), reply("Well.")) as provider:
        assert holdfast("-p", "go", *["--yes"] * yes, **provider.env).code == 0
    assert [(allowed, by) for _, allowed, by in read_audit(tmp_path)] == [audited]
    assert (tmp_path / "made").exists() is audited[0]
    assert (approvals.NO_APPROVER in last_result(provider)) is (audited[1] == "no approver")


@pytest.fixture
def audit(holdfast: Holdfast, tmp_path: Path) -> Holdfast:
    """Run `holdfast audit` with a store that has four calls."""
    path, now = tmp_path / "audited.db", [1_780_000_000.0]
    with SessionDB(path, clock=lambda: now[0]) as db:
        for name in ("one", "two"):
            db.create_session(name, source="test")
        for name, command, allowed, by, ok in (
            ("one", "git diff", True, "rule: allow shell(git diff)", True),
            ("one", "make \x1b[31m", True, "me: once", False),
            ("two", "rm -rf /", False, "no approver", None),
            ("two", "sleep 9", True, "me: always", None),
        ):
            number = db.permissions.begin_audit(name, "c", "shell", command, allowed, by)
            now[0] += 86_400
            if ok is not None:
                db.permissions.end_audit(number, ok)
    return partial(holdfast, "audit", "--db", path)


def test_audit_shows_time_outcome_actor_and_command(audit: Holdfast) -> None:
    shown = audit()
    assert shown.code == 0
    assert shown.out.splitlines() == [
        "2026-05-31 20:26  no end  shell  me: always                   sleep 9",
        "2026-05-30 20:26  denied  shell  no approver                  rm -rf /",
        "2026-05-29 20:26  failed  shell  me: once                     make \\x1b[31m",
        "2026-05-28 20:26  done    shell  rule: allow shell(git diff)  git diff",
    ]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--denied"], ["rm -rf /"]),
        (["--conversation", "one"], ["make \x1b[31m", "git diff"]),
        (["--since", "2026-05-30"], ["sleep 9", "rm -rf /"]),
        (["--since", "900000d"], ["sleep 9", "rm -rf /", "make \x1b[31m", "git diff"]),
        (["-n", "1"], ["sleep 9"]),
    ],
)
def test_audit_is_filtered_by_options(audit: Holdfast, arguments: list[str], found: list[str]) -> None:
    data = audit("--json", *arguments).data
    assert [each["summary"] for each in data["acts"]] == found
    assert data["more"] is (arguments == ["-n", "1"])


def test_audit_refuses_unknown_times_and_conversations(audit: Holdfast) -> None:
    assert "expected 30m, 12h, 7d, 2w, or a date such as 2026-05-28." in audit("--since", "yesterday").failure(2)
    assert audit("--conversation", "three").code == 1
