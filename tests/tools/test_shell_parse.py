"""A plain line is parsed into its commands, and bash runs no program for an allowed line that the rules do not name."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.tools import base
from holdfast.tools.permissions import risks, rules, shell_parse

BASH = shutil.which("bash") or ""

PLAIN = {
    "ls -la src": [("ls", "-la", "src")],
    "git diff HEAD~1 -- 'a b' \"c d\"": [("git", "diff", "HEAD~1", "--", "a b", "c d")],
    "ls; cat x && wc y || pwd | head": [("ls",), ("cat", "x"), ("wc", "y"), ("pwd",), ("head",)],
    "ls\n\ncat x\n": [("ls",), ("cat", "x")],
    "make 2>&1 | tail -5": [("make",), ("tail", "-5")],
    "make 2> /dev/null </dev/null": [("make",)],
    "git commit -m 'rm -rf / $(x) `y`'": [("git", "commit", "-m", "rm -rf / $(x) `y`")],
    "make CC=gcc": [("make", "CC=gcc")],
    "cat ''": [("cat", "")],
    "docker ps": [("docker", "ps")],
}

NOT_PLAIN = [
    # expansions and assignments
    "ls $x", 'ls "$x"', "ls $(x)", "ls `x`", "ls $((1))", "ls $'a'", 'ls $"a"', "ls *", "ls a?", "ls [a]", "ls {a,b}",
    "ls ~", "ls a:~", "ls <(x)", "ls !!", "\\ls", "ls a\\ b", "l\\\ns", "x=1", "x+=1", "x[0]=1", "x=(1)", "PATH=. ls",
    # redirections
    "ls > x", "ls >> x", "ls >x", "ls &> x", "ls >& x", "ls >| x", "ls < x", "ls <<< x", "ls <<E\nE", "ls <> x",
    "{x}> y ls", "ls > /dev/nullx", "ls > /dev/null/x", "ls >/dev/'null'", "ls 2>&x", "ls >&1'$(x)'",
    # compound commands
    "ls &", "ls |& cat", "(ls)", "{ ls; }", "! ls", "if ls; then ls; fi", "for x in a; do ls; done", "time ls",
    "case a in a) ls;; esac", "f() { ls; }", "function f { ls; }", "[[ a ]]", "[ a ]", "((a))", "coproc ls", "ls # x",
    # builtins
    "set -k; ls", "export x", "alias ls=x", "printf x", "read x", "trap x EXIT", "hash -p x ls", "test -v x", "kill 1",
    "eval ls", "exec ls", "command ls", "source x", ". x", "exit", "pushd x", "'if' x", "/bin/test x",
    "cd x", "cd x; ls", "cd x || ls", "cd x | ls", "ls && cd x && ls", "cd && ls", "cd - && ls", "cd -P x && ls",
    "cd x y && ls", "cd x && ls; ls", "cd x && ls || ls", "cd x && ls\nls", "cd '' && ls",
    # programs that run others
    "env ls", "sudo ls", "xargs ls", "find . -exec ls {} +", "find . -delete", "find . -fprint x", "bash -c ls",
    "/bin/bash x", "timeout 5 ls", "ssh h ls", "python3.12 x", "uv run x", "npm run x", "npm --prefix a run x",
    "docker run x", "docker -H a exec x y", "tmux ls", "awk x", "sed p", "tar xf x", "git bisect run x", "vim x",
    # malformed
    "", " ", ";", "ls ;; ls", "ls && ", "| ls", "ls |", "ls 'x", 'ls "x', "ls)", "(", "ls\0", "ls\r", "ls\u200b",
    "ls\u00a0x", "'' x", "'l s'", "'>' x", "ls " + "x" * 20_000,
]  # fmt: skip


@pytest.mark.parametrize(("line", "commands"), PLAIN.items())
def test_plain_line_is_parsed_into_commands(line: str, commands: list[tuple[str, ...]]) -> None:
    assert shell_parse.parse_plain(line) == shell_parse.PlainLine(tuple(commands))
    assert shell_parse.parse_plain("cd src && ls | wc") == shell_parse.PlainLine((("ls",), ("wc",)), "src")


@pytest.mark.parametrize("line", NOT_PLAIN)
def test_line_with_other_syntax_or_builtins_is_not_plain(line: str) -> None:
    assert shell_parse.parse_plain(line) is None


@given(st.lists(st.text(st.characters(blacklist_categories=("Cs", "Cc", "Cf", "Zs", "Zl", "Zp", "Co", "Cn")))))
def test_any_quoted_words_are_parsed_unchanged(words: list[str]) -> None:
    line = shlex.join(["ls", *(word.replace("'", "") for word in words)])
    found = shell_parse.parse_plain(line)
    assert found.commands == (("ls", *(word.replace("'", "") for word in words)),)


RULES = ("shell(cat)", "shell(ls)", "shell(git diff)", "shell(wc *)", "shell(=ls > listed)")
ALLOWED = ("cat", "ls", "git diff", "wc")
PROGRAMS = ("cat", "ls", "git", "wc", "HIT", "env", "bash", "sh", "xargs", "find", "python", "sed", "awk", "timeout")
WORDS = [
    *("ls", "cat", "git diff") * 2,
    *("wc", "a", "b.txt", "HIT", "-c", "--", "'a b'", '"c d"', "=", "x=1", "data"),
]
JOINS = [" ", " ", " ", " ", " ; ", " && ", " || ", " | ", "\n", "; ", "", " 2>&1 ", " >/dev/null ", " 2>/dev/null "]
SIGNS = [
    ";", "&", "&&", "|", "|&", "(", ")", "$(", "`", '"', "'", "\\", "#", "$", "${x:-", "}", "$((", "))", "((", "<<",
    "<<<", "<(", ">(", ">o", "&>o", "<", "$x", "$'", "{a,b}", "{HIT,a}", "*", "~", "[", "!", "'$(HIT)'", '"$(HIT)"',
    "`HIT`", "x[$(HIT)]", "\\\n", "<<E\n", "\nE\n", "$(cat data)", "E", ">&", ">&1'$(HIT)'", "f() ", "time ", "if ",
    "then ", "fi", "{ ", " }", "[[ ", " ]]", "[ -v ", " ]", "printf -v PATH ", "printf -v 'BASH_CMDS[ls]' ", "set -k ",
    "set -x ", "PS4='$(HIT)' ", "read ", "wait -n -p ", "eval ", "env ", "bash -c ", "xargs ", "exec ", "command ",
    "trap ", " EXIT", "test ", "let ", "declare ", "cd ", "cd sub && ", "cd sub; ", "find ", " -exec ", " {} +",
    "alias ls=HIT", "hash -p ./HIT ls", "PATH=sub ", "BASH_ENV=data ", "sed ", "awk ", "timeout 1 ", "python ",
]  # fmt: skip

ORDINARY = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(JOINS)).map("".join), min_size=1, max_size=6)
SNEAKY = st.lists(st.sampled_from([*WORDS, *JOINS, *SIGNS]), max_size=5)
LINES = st.tuples(st.sampled_from(["", "ls ", "cat ", "git diff "]), ORDINARY, SNEAKY, ORDINARY | st.just([])).map(
    lambda each: each[0] + "".join([*each[1], *each[2], *each[3]])
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder with programs that record that they were run."""
    with tempfile.TemporaryDirectory() as name:
        programs, work = Path(name, "bin"), Path(name, "work")
        programs.mkdir()
        (work / "sub").mkdir(parents=True)
        for each in PROGRAMS:
            program = programs / each
            program.write_text(f'#!/bin/sh\necho "${{0##*/}} $1" >> {name}/ran\n')
            program.chmod(0o755)
        shutil.copy(programs / "HIT", work / "HIT")
        for each in ("ls", "cat", "git"):
            # A program of the same name in another folder.
            (work / "sub" / each).write_text((programs / "HIT").read_text().replace("${0##*/}", "HIT"))
            (work / "sub" / each).chmod(0o755)
        (work / "data").write_text("a[$(HIT)]\n")
        yield Path(name)


def decide(line: str, folder: Path) -> rules.RuleDecision:
    commands, danger = risks.describe(line)
    act = base.Act(
        tool="shell", kind="run", summary="", detail=line, commands=commands, danger=danger, paths=(str(folder),)
    )
    return rules.decide(act, rules.Policy(tuple(rules.parse_rule("allow", rule) for rule in RULES), str(folder)))


def run_in_bash(line: str, folder: Path) -> list[str]:
    """Return the programs that bash runs for a line, with their first words."""
    (folder / "ran").unlink(missing_ok=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [BASH, "-c", line],
            env={"PATH": str(folder / "bin"), "HOME": str(folder)},
            cwd=folder / "work",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=20,
            check=False,
        )
    return (folder / "ran").read_text().splitlines() if (folder / "ran").exists() else []


@pytest.mark.skipif(not BASH, reason="this system has no bash")
@settings(max_examples=250, deadline=None)
@given(LINES)
@example("ls; cat a && git diff b | wc -l")
@example("ls 2>&1 | cat >/dev/null")
@example("git diff '$(HIT)' \"a b\"")
def test_bash_runs_only_allowed_programs_for_any_allowed_line(folder: Path, line: str) -> None:
    if decide(line, folder / "work").effect != "allow":
        return
    files = sorted(os.listdir(folder / "work"))
    for each in run_in_bash(line, folder):
        assert each.startswith(ALLOWED), (line, each)
    assert sorted(os.listdir(folder / "work")) == files, line


@pytest.mark.skipif(not BASH, reason="this system has no bash")
def test_recorded_programs_do_run(folder: Path) -> None:
    assert decide("ls a; cat b && git diff c | wc -l", folder / "work").effect == "allow"
    assert sorted(run_in_bash("ls a; cat b && git diff c | wc -l", folder)) == ["cat b", "git diff", "ls a", "wc -l"]
    for line in ("ls $(HIT)", "printf -v PATH %s ./sub; ls", "set -x; HIT"):
        assert decide(line, folder / "work").effect == "ask"
        assert any(each.startswith("HIT") for each in run_in_bash(line, folder)), line
