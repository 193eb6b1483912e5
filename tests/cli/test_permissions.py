"""Permissions on a real terminal and in scripts: asked, answered, denied where nobody is, and found in the audit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SessionDB
from tests.support import cli_process, cli_zygote, provider_process, pty_terminal, replay_server

ENTER, STOP = "\r", "\x03"
# The space behind a prompt is drawn by moving over it.
ASKED = "n no, d details >"


def runs(command: str) -> replay_server.Answer:
    return provider_process.called("shell", json.dumps({"command": command}))


def told(played: provider_process.Playing) -> str:
    """What the model was told of its last call."""
    return str(json.loads(played.asked[-1].body)["messages"][-1]["content"])


def acts(home: Path) -> list[tuple[str, bool, str]]:
    with SessionDB(home / "data" / "holdfast.db") as db:
        return [(each.summary, each.allowed, each.by) for each in reversed(db.permissions.audit_log())]


def settings(home: Path, text: str) -> None:
    (home / "data").mkdir(exist_ok=True)
    (home / "data" / "config.toml").write_text(f"[memory]\nreview = false\n{text}")


@pytest.fixture(autouse=True)
def _no_review(tmp_path: Path) -> None:
    """The model is asked for turns only."""
    settings(tmp_path, "")


# --- in the chat ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_yes_lets_it_run_and_a_no_is_told_with_its_reason(tmp_path: Path, term: str) -> None:
    script = (runs("touch made"), runs("touch more"), provider_process.said("Well."))
    with (
        provider_process.playing(*script) as played,
        pty_terminal.opened(tmp_path, env={**played.env, "TERM": term}, columns=200) as screen,
    ):
        screen.enter("go")
        screen.wait_for("touch made")
        screen.wait_for(ASKED)
        assert not (tmp_path / "made").exists()
        screen.type(f"perhaps{ENTER}")
        screen.wait_for("Type y, c, a, n or d")
        screen.wait_for(ASKED)
        screen.type(f"y{ENTER}")
        screen.wait_for("Allowed (at the terminal: once).")
        screen.wait_for(ASKED)
        screen.type(f"n one is enough{ENTER}")
        screen.wait_for("Denied (at the terminal: no).")
        screen.wait_for("Well.")
        if term != "dumb":  # What was no answer is a draft again, where there can be one.
            screen.wait_for("> perhaps")
            screen.type("\x15")
        assert screen.leave() == 0
        assert "They said: one is enough" in told(played)
    assert (tmp_path / "made").exists()
    assert not (tmp_path / "more").exists()
    assert acts(tmp_path) == [
        ("touch made", True, "at the terminal: once"),
        ("touch more", False, "at the terminal: no"),
    ]


def test_always_is_remembered_and_not_asked_again(tmp_path: Path) -> None:
    rule = f"shell(=ls -a) in {tmp_path}"
    for number in (1, 2):
        with (
            provider_process.playing(runs("ls -a"), provider_process.said("Done.")) as played,
            pty_terminal.opened(tmp_path, env=played.env, columns=200) as screen,
        ):
            screen.enter("go")
            if number == 1:
                screen.wait_for("c or a also allows from now on: shell(=ls -a) in")
                screen.wait_for(ASKED)
                screen.type(f"a{ENTER}")
            screen.wait_for("Done.")
            assert screen.leave() == 0
    assert [by for _, _, by in acts(tmp_path)] == ["at the terminal: always", f"grant 1: {rule}"]


def test_ctrl_c_at_a_question_denies_and_stops_the_turn(tmp_path: Path) -> None:
    with (
        provider_process.playing(
            runs("touch made"), provider_process.said("Well."), provider_process.said("Again.")
        ) as played,
        pty_terminal.opened(tmp_path, env=played.env, columns=200) as screen,
    ):
        screen.enter("go")
        screen.wait_for(ASKED)
        screen.type(STOP)
        screen.wait_for("Interrupted.")
        assert screen.leave() == 0
        assert screen.echoes()
    assert not (tmp_path / "made").exists()
    assert [allowed for _, allowed, _ in acts(tmp_path)] == [False]


def test_what_was_typed_before_a_question_is_no_answer_to_it(tmp_path: Path) -> None:
    with (
        provider_process.playing(
            provider_process.said_and_hung("Once"),
            runs("touch made"),
            provider_process.said("Well."),
            provider_process.said("Yes?"),
        ) as played,
        pty_terminal.opened(tmp_path, env=played.env, columns=200) as screen,
    ):
        screen.enter("tell me")
        screen.wait_for("Once")
        screen.type(STOP)
        screen.wait_for("Interrupted.")
        screen.wait_for("> ")
        # The line and what is typed ahead of its answer come in one piece.
        screen.type(f"go{ENTER}y{ENTER}")
        screen.wait_for(ASKED)
        assert not (tmp_path / "made").exists()
        screen.type(f"n{ENTER}")
        screen.wait_for("Well.")
        screen.wait_for("Yes?")
        assert screen.leave() == 0
    assert not (tmp_path / "made").exists()


def test_danger_is_shown_and_all_of_a_long_command_can_be_seen(tmp_path: Path) -> None:
    command = "\n".join(["rm -rf build/*", *(f"echo {number}" for number in range(30)), "echo the-end"])
    with (
        provider_process.playing(runs(command), provider_process.said("Well.")) as played,
        pty_terminal.opened(tmp_path, env=played.env, columns=200) as screen,
    ):
        screen.enter("go")
        screen.wait_for("20 more lines (d shows all)")
        screen.wait_for("It removes build/* without asking.")
        screen.wait_for(ASKED)
        screen.type(f"d{ENTER}")
        screen.wait_for("  echo the-end")
        screen.wait_for(ASKED)
        screen.type(f"n{ENTER}")
        screen.wait_for("Well.")
        assert screen.leave() == 0
        assert "\x1b[31mIt removes build/*" in screen.raw


# --- in a script ---------------------------------------------------------------------------------------


Ask = Callable[..., cli_process.Run]


@pytest.fixture
def ask(tmp_path: Path, waiting: cli_zygote.Server) -> Ask:
    def run(played: provider_process.Playing, *arguments: str) -> cli_process.Run:
        return waiting.run(tmp_path, "-p", "go", *arguments, env=played.env)

    return run


def test_a_script_is_denied_what_would_be_asked(tmp_path: Path, ask: Ask) -> None:
    with provider_process.playing(runs("touch made"), provider_process.said("Well.")) as played:
        assert ask(played).code == 0
        assert "No one is connected who could approve it." in told(played)
    assert not (tmp_path / "made").exists()


def test_yes_allows_what_would_be_asked_and_nothing_forbidden_or_dangerous(tmp_path: Path, ask: Ask) -> None:
    settings(tmp_path, '[permissions]\ndeny = ["shell(touch never)"]\n')
    for command, made in (("touch made", True), ("touch never", False), ("PATH=. touch other", False)):
        with provider_process.playing(runs(command), provider_process.said("Well.")) as played:
            assert ask(played, "--yes").code == 0
        assert (tmp_path / command.split()[-1]).exists() is made
    assert [by for _, _, by in acts(tmp_path)] == ["--yes", "rule: deny shell(touch never)", "--yes"]


def test_rules_of_the_user_count_and_a_project_has_no_say(tmp_path: Path, ask: Ask) -> None:
    settings(tmp_path, '[permissions]\nallow = ["shell(touch)"]\n')
    with provider_process.playing(runs("touch made"), provider_process.said("Well.")) as played:
        assert ask(played).code == 0
    assert (tmp_path / "made").exists()
    (tmp_path / ".holdfast.toml").write_text('[permissions]\nallow = ["shell"]\n')
    with provider_process.playing(provider_process.said("Well.")) as played:
        refused = ask(played)
    assert refused.code == 2
    assert "a project's file may not set `permissions`" in refused.err


def test_a_rule_that_cannot_be_read_is_refused_with_its_place(tmp_path: Path, ask: Ask) -> None:
    settings(tmp_path, '[permissions]\nallow = ["shell(git"]\n')
    with provider_process.playing() as played:
        refused = ask(played)
    assert refused.code == 2
    assert "config.toml: `permissions.allow`: 'shell(git' is not a valid rule." in refused.err


def test_yes_is_for_one_message(tmp_path: Path, waiting: cli_zygote.Server) -> None:
    assert waiting.run(tmp_path, "--yes").code == 2


# --- the audit -----------------------------------------------------------------------------------------


@pytest.fixture
def audited(tmp_path: Path) -> Path:
    path = tmp_path / "audited.db"
    clock = [1_780_000_000.0]
    with SessionDB(path, clock=lambda: clock[0]) as db:
        for name in ("one", "two"):
            db.create_session(name, source="test")
        for name, what, allowed, by, ok in (
            ("one", "git diff", True, "rule: allow shell(git diff)", True),
            ("one", "make \x1b[31m", True, "me: once", False),
            ("two", "rm -rf /", False, "nobody", None),
            ("two", "sleep 9", True, "me: always", None),
        ):
            number = db.permissions.begin_audit(name, "c", "shell", what, allowed, by)
            clock[0] += 86_400
            if ok is not None:
                db.permissions.end_audit(number, ok)
    return path


def test_the_audit_says_when_what_who_and_how_it_ended(
    audited: Path, tmp_path: Path, waiting: cli_zygote.Server
) -> None:
    shown = waiting.run(tmp_path, "audit", "--db", audited)
    assert shown.code == 0
    assert shown.out.splitlines() == [
        "2026-05-31 20:26  no end  shell  me: always                   sleep 9",
        "2026-05-30 20:26  denied  shell  nobody                       rm -rf /",
        "2026-05-29 20:26  failed  shell  me: once                     make \\x1b[31m",
        "2026-05-28 20:26  done    shell  rule: allow shell(git diff)  git diff",
    ]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ([], ["sleep 9", "rm -rf /", "make \x1b[31m", "git diff"]),
        (["--denied"], ["rm -rf /"]),
        (["--conversation", "one"], ["make \x1b[31m", "git diff"]),
        (["--since", "2026-05-30"], ["sleep 9", "rm -rf /"]),
        (["--since", "900000d"], ["sleep 9", "rm -rf /", "make \x1b[31m", "git diff"]),
        (["-n", "1"], ["sleep 9"]),
    ],
)
def test_the_audit_is_narrowed_by_options(
    audited: Path, tmp_path: Path, arguments: list[str], found: list[str], waiting: cli_zygote.Server
) -> None:
    data = waiting.run(tmp_path, "audit", "--db", audited, "--json", *arguments).data
    assert [each["summary"] for each in data["acts"]] == found
    assert data["more"] is (arguments == ["-n", "1"])


def test_the_audit_refuses_what_it_cannot_read(audited: Path, tmp_path: Path, waiting: cli_zygote.Server) -> None:
    done = waiting.run(tmp_path, "audit", "--db", audited, "--since", "yesterday")
    assert done.code == 2
    assert "expected 30m, 12h, 7d, 2w, or a date such as 2026-05-28." in done.sentence
    assert waiting.run(tmp_path, "audit", "--db", audited, "--conversation", "three").code == 1
