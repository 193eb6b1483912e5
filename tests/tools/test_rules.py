"""Rules and grants decide about an act: a denied act is never done, a risky one is asked for every time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import errors, types
from holdfast.tools import base
from holdfast.tools.permissions import risks, rules

FOLDER = "/work/project"


def policy(**texts: list[str]) -> rules.Policy:
    effects: tuple[rules.Effect, ...] = ("deny", "ask", "allow")
    parsed = tuple(rules.parse_rule(effect, text) for effect in effects for text in texts.get(effect, []))
    return rules.Policy(parsed, FOLDER, "/home/me")


def effect_of(act: base.Act, *granted: str, **texts: list[str]) -> str:
    return rules.decide(act, policy(**texts), grants(*granted)).effect


def run(line: str, tool: str = "shell", folder: str = FOLDER) -> base.Act:
    commands, danger = risks.describe(line)
    return base.Act(tool=tool, kind="run", summary=line, detail=line, commands=commands, paths=(folder,), danger=danger)


def act(tool: str, kind: base.Kind = "change", *paths: str, **more: Any) -> base.Act:
    return base.Act(tool=tool, kind=kind, summary=tool, paths=paths, **more)


def grants(*texts: str) -> list[types.Grant]:
    return [
        types.Grant(id=number, owner="", rule=text, conversation_id=None, at=0.0, by="me")
        for number, text in enumerate(texts, 1)
    ]


# --- command lines -------------------------------------------------------------------------------------

GIT_DIFF = {"allow": ["shell(git diff)"]}
GIT_DIFF_IN_SRC = {"allow": ["shell(git diff) in src/**"]}
NO_PUSH = {"allow": ["shell(git *)"], "deny": ["shell(git push)"]}
NO_SECRET = {"allow": ["shell"], "deny": ["write_file(secret/**)"]}
NO_NOTES = {"allow": ["shell"], "deny": ["write_file(~/notes/**)"]}
NO_PRIVATE = {"allow": ["shell"], "deny": ["write_file(private/**)"]}
NO_RM = {"allow": ["shell"], "deny": ["shell(rm)"]}
ASK_PUSH = {"allow": ["shell"], "ask": ["shell(git push)"]}
DECISIONS: list[tuple[dict[str, list[str]], str, list[str]]] = [
    ({}, "ask", ["ls"]),
    ({"allow": ["shell"]}, "allow", ["ls", "for x in *; do wc $x; done > out"]),
    ({"allow": ["shell"]}, "ask", ["rm -rf /", "$X", "ls)", "ls |", "{ ls", "echo $(ls", "[[ -f x", "f() { ls; }"]),
    ({"allow": ["shell"]}, "ask", ["case x in a) ls;; esac", "echo $((1 + 2))", "x=(a b)", "ls >", "fi", "in ls"]),
    ({"allow": ["shell"], "deny": ["write_file(a)"]}, "ask", ["'>'"]),
    (GIT_DIFF, "allow", ["git diff", "git diff HEAD a", "git diff 2>/dev/null", "echo hi && git diff; true"]),
    (GIT_DIFF, "ask", ["git diff --stat", "git diff a=b", "git diff +a", "git difftool", "git diff; git push"]),
    (GIT_DIFF, "ask", ["git diff > x", "git diff $(git push)", "cd src && git diff", "timeout 9 git diff"]),
    (GIT_DIFF, "ask", ["bash -c 'git diff'", "/tmp/git diff", "echo hi", "git diff $x", "FOO=1 git diff"]),
    ({"allow": ["shell(git diff *)"]}, "allow", ["git diff", "git diff --stat -- a=b"]),
    ({"allow": ["shell(git diff *)"]}, "ask", ["git push", "git diff --ext-diff > x"]),
    (GIT_DIFF_IN_SRC, "allow", ["cd src/a && git diff"]),
    (GIT_DIFF_IN_SRC, "ask", ["cd src/../x && git diff", "git diff"]),
    ({"allow": ["shell(git diff) in **"]}, "allow", ["cd src && git diff"]),
    ({"allow": ["shell(=make test)"]}, "allow", ["make test"]),
    ({"allow": ["shell(=make test)"]}, "ask", ["make test SHELL=x", "make  test"]),
    ({"allow": ["shell(=rm -rf /)"]}, "ask", ["rm -rf /"]),
    ({"allow": ["start_process(ls)"]}, "ask", ["ls"]),
    (NO_PUSH, "allow", ["git log", "git commit -m push"]),
    (NO_PUSH, "deny", ["git -C x push", "/usr/bin/git push", "GIT push", "FOO=1 git push", "echo $(git push)"]),
    ({"deny": ["shell(rm)"]}, "deny", ["rm -rf /", "find . -exec rm {} +", "ls | xargs rm", "bash -c 'ls; rm x'"]),
    ({"deny": ["*"], "allow": ["shell"]}, "deny", ["ls"]),
    (ASK_PUSH, "ask", ["git push", "git $x"]),
    (ASK_PUSH, "allow", ["git pull"]),
    (NO_SECRET, "deny", ["echo x > secret/y", "echo x > a/../SECRET/y"]),
    (NO_SECRET, "allow", ["echo x > other"]),
    (NO_NOTES, "deny", ["echo x > ~/notes/y", "echo x > $HOME/notes/y"]),
    # Next to words that are not understood, a denied command is still found; a line that cannot be one is allowed.
    (NO_PRIVATE, "deny", ["cd private && echo x > b.txt", "pushd private; echo x > b"]),
    (NO_PRIVATE, "allow", ["cd src && make > build.log", "echo x > /tmp/a"]),
    ({"allow": ["shell"], "deny": ["write_file(config/**)"]}, "deny", ["bash -c 'echo hi' > config/x"]),
    (NO_RM, "deny", ["rm x; $y", "hash -p /bin/rm ls; ls", "sh -c 'r\"\"m x' $y"]),
    (NO_RM, "allow", ["grep rm src", "cd src && pytest -q", "find src -name '*.py'"]),
    ({"allow": ["shell"], "deny": ["shell(git push)"]}, "deny", ["git push; awk '{system(1)}'"]),
    (
        {"allow": ["shell"], "deny": ["shell(git push)"]},
        "allow",
        ["make -j4 test 2>&1 | tail -20", "git diff HEAD -- a"],
    ),
    ({"allow": ["shell"], "deny": ["shell(docker run)"]}, "deny", ["docker run $x"]),
]


@pytest.mark.parametrize(
    ("texts", "effect", "line"), [(texts, effect, line) for texts, effect, lines in DECISIONS for line in lines]
)
def test_every_command_of_a_line_must_be_covered(texts: dict[str, list[str]], effect: str, line: str) -> None:
    assert effect_of(run(line), **texts) == effect


# Rules, and lines that they do not cover although they seem to.
NOT_COVERED: list[tuple[tuple[str, ...], list[str]]] = [
    # bash and eval have variables and redirections of their own
    (("shell(ls)",), ["PATH=./evil bash -c ls", "eval ls > pwn", "bash -c ls > src/main.py"]),
    # the text of a file becomes a command
    (("shell(cat)", "shell(ls)"), ["[[ $(cat data.txt) -eq 0 ]]", "echo ${HOME:$(cat data.txt)}; ls"]),
    # builtins change the shell
    (("shell(ls)",), ["read PATH < f; ls", "sleep 0.1 & wait -n -p 'a[$(echo WAIT >> pwn)]'; ls", "popd +1; ls"]),
    (("shell(git diff)",), ["set -k; git diff GIT_EXTERNAL_DIFF=evil/evil.sh"]),
    # options that run programs
    (("shell(git grep)", "shell(git log)"), ["git grep '-Otouch pwn #' foo", "git log --outpu=src/x"]),
    (("shell(git fetch)",), ["git fetch --upload-pac=evil .", "x=--upload-pack=./evil; git fetch $x ."]),
    (("shell(make test)",), ["make test SHELL=evil/evil.sh", "make test -f evil.mk", "make -C evil test"]),
    (("shell(git diff)",), ["x=--output=src/main.py; git diff $x", "echo push | xargs -I diff git diff"]),
    # the program reads its words in another way
    (("shell(cat)", "shell(echo)"), ["env -C /evil cat x", "echo sh | xargs -I cat cat -c 'touch pwn'"]),
    # in another folder
    (("shell(make test)", "shell(cat)"), ["cd sub && make test", "cd /evil && cat x", "env -C evil make test"]),
    (("shell(uniq)", "shell(date)", "shell(pytest)"), ["uniq in .git/hooks/x", "date -s tomorrow", "pytest -p evil"]),
]


@pytest.mark.parametrize(("allowed", "line"), [(allowed, line) for allowed, lines in NOT_COVERED for line in lines])
def test_narrow_rule_or_grant_covers_only_its_words(allowed: tuple[str, ...], line: str) -> None:
    assert effect_of(run(line), allow=list(allowed)) == "ask"
    assert effect_of(run(line), *allowed, *(f"{text} in {FOLDER}" for text in allowed[1:])) == "ask"


# A deny rule, and lines that may hide a denied command.
MAY_HIDE: list[tuple[str, list[str]]] = [
    ("shell(git status)", ["x=status; git $x", "git -C $x log", "git $x status"]),
    (
        "shell(rm)",
        ["$y", "xargs < list env", "timeout -s KILL 5 rm x", "alias ls=rm; ls", "env $x y",
         "echo x | xargs -I % $y", "find . -exec $x {} +", "bash -c \"$x\"", "awk 'BEGIN{system(\"rm x\")}'", "echo 'x",
         "ls ${x@P}", "cat <<E\nx"],
    ),
    (
        "write_file(private/**)",
        ["echo x > $y", "cd $y && echo x > b", "cd a; cd private; echo x > b", "false && cd a; echo x > private/b",
         "tee private/b", "cp a private/b", "cd - && echo x > b", "echo x > priv*/b", "eval $x"],
    ),
    ("read_file(private/**)", ["cat private/a", "cd private && cat a", "wc < private/a", "cat < $x"]),
    ("shell(make) in vendor/**", ["cd vendor/x && make"]),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "line"), [(rule, line) for rule, lines in MAY_HIDE for line in lines])
def test_line_that_may_hide_a_denied_command_needs_a_person(rule: str, line: str) -> None:
    found = rules.decide(run(line), policy(deny=[rule], allow=["shell"]), grants("shell"))
    assert (found.effect, found.maybe_denied, found.grants) == ("ask", True, ())


# A denied program is run without being named openly, or by a program that is not known to run others.
NOT_CHECKED = [
    "time -p rm x", "coproc NAME { rm x; }", "coproc NAME rm x", "compgen -C 'rm x'", "prlimit --nofile=9 rm x",
    "sg staff -c 'rm x'", "run-parts --arg=x dir", "gcc -wrapper rm,x a.c", "/lib64/ld-linux-x86-64.so.2 /bin/rm x",
    "printf '!rm x\\n' | ed", "cat rules | make -f -", "make -sf x", "make SHELL=x", "make --ev 'a: ; rm x'",
    "sort --co=rm x", "git push --rece rm", "pytest --tx popen//python=rm", "npm test --script-sh=rm", "./build.sh",
    "timeout 60 pytest", "make > build.log", "git diff $x", "for f in a b; do wc $f; done",
]  # fmt: skip


@pytest.mark.parametrize("line", NOT_CHECKED)
def test_line_that_cannot_be_checked_against_a_deny_rule_is_asked_for(line: str) -> None:
    """Or denied. A person is warned if the denied program was recognised."""
    denying = policy(deny=["shell(rm)"], allow=["shell"])
    found = rules.decide(run(line), denying)
    assert found.effect == "deny" or (
        found.effect == "ask" and (found.unclear or found.maybe_denied or run(line).danger)
    )
    assert effect_of(run(line), deny=["shell(rm)"]) != "allow"
    if found.unclear:
        assert rules.decide(run(line), denying, grants(*found.grants)).effect == "allow"


def test_program_named_by_an_allow_rule_is_trusted_under_a_deny_rule() -> None:
    named = policy(deny=["shell(rm)"], allow=["shell", "shell(prlimit *)", "shell(=./build.sh > log)"])
    assert rules.decide(run("prlimit --nofile=9 ls"), named).effect == "allow"
    assert rules.decide(run("./build.sh > log"), named).effect == "allow"
    assert rules.decide(run("prlimit --nofile=9 rm x"), named).maybe_denied
    assert rules.decide(run("./build.sh"), named).unclear
    assert effect_of(run("./build.sh"), ask=["shell(rm)"], allow=["shell"]) == "ask"


@pytest.mark.parametrize("line", ["./build.sh", "git status"])
def test_grant_and_rule_hold_in_their_folder_only(line: str) -> None:
    elsewhere = run(line, folder=f"{FOLDER}/node_modules/evil")
    granted = rules.suggest_grants(run(line), policy())
    assert effect_of(run(line), *granted) == "allow"
    assert effect_of(elsewhere, *granted) == "ask"
    assert rules.decide(elsewhere, rules.Policy((), elsewhere.paths[0]), grants(*granted)).effect == "ask"
    assert effect_of(run(line), allow=[f"shell(={line})"]) == "allow"
    assert effect_of(elsewhere, allow=[f"shell(={line})"]) == "ask"


# --- files and other tools -----------------------------------------------------------------------------

SRC = {"allow": ["write_file(src/**)"]}
KEYS = act("read_file", "look", "/work/project/x/.env", danger="It may hold keys.")
ACTS: list[tuple[dict[str, list[str]], base.Act, str]] = [
    ({"allow": ["read_file"]}, KEYS, "ask"),
    ({"deny": ["read_file(**/.env)"]}, KEYS, "deny"),
    ({"deny": ["read_file(**/.env)"]}, act("read_file", "look", "/work/project/x/.ENV"), "deny"),
    ({"ask": ["read_file(/work/other/**)"]}, act("read_file", "look", "/work/other/x"), "ask"),
    ({}, act("write_file", "change", "/work/project/a"), "ask"),
    (SRC, act("write_file", "change", "/work/project/src/a/b"), "allow"),
    (SRC, act("write_file", "change", "/work/project/srcx/b"), "ask"),
    (SRC, act("write_file", "change", "/work/project/SRC/a"), "ask"),
    (SRC, act("write_file", "change", "/work/project/src/a", "/etc/x"), "ask"),
    (SRC, act("write_file", "change"), "ask"),
    ({"allow": ["write_file(src/*)"]}, act("write_file", "change", "/work/project/src/a/b"), "ask"),
    ({"allow": ["write_file(~/notes/*)"]}, act("write_file", "change", "/home/me/notes/a"), "allow"),
    ({"allow": ["github__*"]}, act("github__list", "reach"), "allow"),
    ({"allow": ["github__*"], "deny": ["github__delete"]}, act("github__delete", "reach"), "deny"),
    ({"allow": ["custom"], "deny": ["custom(rm)"]}, act("custom", "run", detail="ls"), "ask"),
    # A rule for files covers no command line.
    ({"allow": ["build(**)"]}, act("build", "change", f"{FOLDER}/a"), "allow"),
    ({"allow": ["build(**)"]}, act("build", "change", f"{FOLDER}/a", commands=(("rm", "a"),), detail="rm a"), "ask"),
    # A deny rule covers similar tools, and an allow rule does not.
    ({"deny": ["shell(rm)"]}, run("rm x", "start_process"), "deny"),
    ({"deny": ["write_file(private/**)"]}, act("edit_file", "change", "/work/project/private/x"), "deny"),
    ({"deny": ["read_file(private/**)"]}, act("send_file", "look", "/work/project/private/x"), "deny"),
    ({"allow": ["shell(ls)"]}, run("ls", "start_process"), "ask"),
]


@pytest.mark.parametrize(("texts", "found", "effect"), ACTS)
def test_every_path_of_an_act_must_be_covered(texts: dict[str, list[str]], found: base.Act, effect: str) -> None:
    assert effect_of(found, **texts) == effect


def test_grant_wins_over_ask_and_loses_to_deny_and_risk() -> None:
    push = "shell(git push)"
    assert effect_of(run("git push"), push, ask=[push]) == "allow"
    assert effect_of(run("git push"), ask=[push], allow=["shell"]) == "ask"
    assert effect_of(run("git push"), push, deny=[push]) == "deny"
    assert effect_of(run("git push -f"), push) == "ask"
    assert effect_of(run("git $x"), "shell(git *)", deny=[push]) == "ask"


# --- grants and texts of rules -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "suggested"),
    [
        (run("git diff | head x"), (f"shell(git diff) in {FOLDER}", f"shell(head) in {FOLDER}")),
        (run("git diff | head -5"), (f"shell(=git diff | head -5) in {FOLDER}",)),
        (run("echo ') in /'"), (f"shell(=echo ') in /') in {FOLDER}",)),
        (run("frobnicate $x > out"), (f"shell(=frobnicate $x > out) in {FOLDER}",)),
        (run("make test", "start_process"), (f"start_process(=make test) in {FOLDER}",)),
        (run("make", folder="/work/a (b)"), ()),
        (run("make\nls"), ()),
        (run("rm -rf /"), ()),
        (act("write_file", "change", "/work/project/src/a.py"), ("write_file(/work/project/src/**)",)),
        (act("write_file", "change", "/elsewhere/a.py"), ("write_file(/elsewhere/a.py)",)),
        (act("write_file", "change", "/work/project/a", "/work/project/b*"), ()),
        (act("write_file", "change", "/work/project/x", danger="Look."), ()),
        (act("github__list", "reach"), ("github__list",)),
        (act("custom", "run"), ()),
    ],
)
def test_suggested_grants_allow_the_act_and_nothing_broader(found: base.Act, suggested: tuple[str, ...]) -> None:
    assert rules.suggest_grants(found, policy()) == suggested
    if suggested:
        assert effect_of(found, *suggested) == "allow"


WORD = st.sampled_from(
    ["git", "diff", "rm", "-r", "push", "ls", "$x", "*", "> out", "&&", ";", "|", "make", "echo", "'a b'"]
)
LINE = st.lists(WORD, max_size=8).map(" ".join)


@given(LINE, LINE)
def test_grants_for_any_line_allow_it_and_no_risky_one(line: str, other: str) -> None:
    suggested = rules.suggest_grants(run(line), policy())
    if suggested:
        assert effect_of(run(line), *suggested) == "allow"
    if run(other).danger:
        assert effect_of(run(other), *suggested) == "ask"


@given(st.text(), st.sampled_from(["allow", "ask", "deny"]))
def test_any_text_is_a_rule_or_refused(text: str, effect: rules.Effect) -> None:
    try:
        rule = rules.parse_rule(effect, text)
    except errors.SettingInvalid:
        return
    assert rules.decide(run("ls"), rules.Policy((rule,))).effect in ("allow", "ask", "deny")


INVALID = [
    "", "shell(", "shell()", "sh ell", "a)b", "shell('x)", "shell(\x1b)", "s*l", "shell(ls) in", "shell in x",
    "shell(> x)", "shell(uv run pytest)", "shell(python *)", "start_process(env)", "shell(a | b)",
]  # fmt: skip


@pytest.mark.parametrize("text", INVALID)
def test_invalid_rule_is_refused_with_its_place_and_an_invalid_grant_ignored(text: str) -> None:
    with pytest.raises(errors.SettingInvalid, match=r"`permissions\.allow`"):
        rules.parse_rule("allow", text, "`permissions.allow`: ")
    assert effect_of(run("ls"), text) == "ask"
