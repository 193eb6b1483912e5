"""Programs that run other programs: which they are, and what they run, as far as it stands in their words.

What such a program runs is never allowed by its words: how each of them reads its options is not known here. To find
what is forbidden or dangerous, what stands behind their options is taken for a command, and a text for a line.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from holdfast.tools.permissions import direct_commands, shell_parse

Command = shell_parse.Command
FED = "It gives a text to `{}` to be run."
WRITTEN = "It has `{}` run a text."
LONGEST = 100
"""A command that runs others and has more words than this is not looked into."""

SHELLS = shell_parse.names("sh dash ash bash zsh ksh mksh fish csh tcsh rbash pwsh")
# The letters of options that are followed by a program.
_TEXTS = {"python": "c", "pypy": "c", "perl": "eE", "ruby": "e", "node": "ep", "nodejs": "ep", "bun": "ep",
          "php": "rBRE", "deno": "", "lua": "e", "luajit": "e", "rscript": "e", "r": "e", "julia": "eE", "elixir": "e",
          "scala": "e", "groovy": "e", "ipython": "c", "irb": "e", "tclsh": "", "osascript": "e"}  # fmt: skip
# They run what is in their words, at once or later.
_FRONTS = shell_parse.names(
    """
    env sudo doas su pkexec run0 runuser nohup setsid nice ionice stdbuf timeout time command builtin exec eval
    source . trap xargs parallel ssh watch script expect unbuffer entr strace ltrace gdb lldb valgrind flock
    systemd-run firejail bwrap proot fakeroot chroot unshare nsenter chrt taskset setpriv capsh start-stop-daemon
    daemonize busybox toybox alias hash enable bind fc complete mapfile readarray coproc npx bunx uvx pipx tmux
    screen xdotool ydotool wtype at batch crontab find fd fdfind awk gawk mawk nawk sed gsed ed ex vi vim nvim emacs
    tar gtar bsdtar m4 dc jshell ghci gnuplot octave sqlite3 psql mysql mariadb ld.so rlwrap dbus-launch xvfb-run
    setarch linux64 cpulimit caffeinate direnv mise asdf nix nix-shell conda hatch tox nox rye pdm pixi vagrant
    ansible salt mosh rsh adb
    """
)
# With one of these words they run something; without, they are programs like others.
_WORDS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("uv", "poetry", "pipenv", "dotnet", "rails", "cargo", "go"), frozenset({"run", "runner"})),
    **dict.fromkeys(("npm", "pnpm", "yarn"), frozenset({"run", "run-script", "exec", "dlx", "x", "explore", "node"})),
    **dict.fromkeys(
        ("docker", "podman", "kubectl", "nerdctl", "docker-compose", "oc", "lxc"), frozenset({"run", "exec"})
    ),
    "git": shell_parse.names("bisect foreach filter-branch difftool mergetool rebase instaweb"),
    "bundle": frozenset({"exec"}),
    "gh": frozenset({"alias", "extension", "codespace"}),
}
_STARTS = frozenset({"-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch", "--"})
_FINDS = re.compile(r"-(?:exec(?:dir)?|ok(?:dir)?|delete|fprint[0f]?|fls)")
_ASKS = frozenset({"--version", "-V", "-v", "--help", "-h"})
_VALUES = frozenset({"-W", "-X", "-I", "-r", "-C"})
_SED_SAFE = re.compile(
    r"(?:(?:\d+|\$)(?:,(?:\d+|\$))?[pdq=]|(?:(?:\d+|\$)(?:,(?:\d+|\$))?)?s([/|#,:@!])(?:(?!\1)[^\\\n]|\\.)*\1"
    r"(?:(?!\1)[^\\\n]|\\.)*\1[gpiI0-9]*|/[^/\\\n]*/[pd]|[pdq=])"
)


def name(words: Command) -> str:
    """The name of a command's program, without its folder and version: /usr/bin/python3.12 is python."""
    bare = posixpath.basename(shell_parse.text_of(words[0])).lower() if words else ""
    return bare if bare in _FRONTS else re.sub(r"(?<=[a-z])[\d.]+$", "", bare)


def runs_others(words: Command) -> bool:
    """Whether a command runs another program by its words."""
    program = name(words)
    if program == "find":
        return any(not shell_parse.known(word) or _FINDS.fullmatch(word) for word in words[1:])
    own = program in _FRONTS or program in SHELLS or program in _TEXTS
    return own or not _WORDS.get(program, frozenset()).isdisjoint(words[1:])


def opened(text: str, depth: int = 0) -> list[Command]:
    """The commands of a line, and those they run in turn, as far as they can be told."""
    commands = list[Command]()
    for words in shell_parse.found(text, depth):
        commands.append(words)
        commands += _inner(shell_parse.program_first(words), depth)
    return commands


def _inner(words: Command, depth: int) -> list[Command]:
    if not words or not runs_others(words):
        return []
    if depth >= shell_parse.DEEPEST or len(words) > LONGEST:
        return [shell_parse.UNREAD]
    found, program = list[Command](), name(words)
    given = (*words, shell_parse.UNKNOWN) if program == "xargs" else words
    for at in _starts(given):
        inner = tuple(shell_parse.UNKNOWN if each == "{}" else each for each in given[at:])
        found += [inner, *_inner(shell_parse.program_first(inner), depth + 1)]
    if program in SHELLS or program in (
        "eval",
        "trap",
        "ssh",
        "watch",
        "script",
        "su",
        "env",
        "parallel",
        "find",
        "xargs",
    ):
        texts = [" ".join(given[1:])] if program == "eval" else given[1:]
        for text in texts:
            if not shell_parse.known(text) and program != "find" and text != shell_parse.UNKNOWN:
                found.append(shell_parse.UNREAD)
            elif re.search(r"[\s;&|<>$`]", text):
                found += opened(text.removeprefix("-S").removeprefix("--split-string="), depth + 1)
    return found


def _starts(words: Command) -> Iterator[int]:
    """Where another command may begin: behind the options, variables and numbers, and where an option says so."""
    first = next((n for n, word in enumerate(words) if n and not re.match(r"-|\w+=|\d+[smhd]?$", word)), 0)
    for at in range(1, len(words)):
        if (at == first and name(words) != "find") or words[at - 1] in _STARTS:
            yield at


def suffixes(words: Command) -> Iterator[Command]:
    """All that could be the command behind a program that runs others, wherever it begins."""
    if len(words) <= LONGEST and runs_others(words):
        yield from (words[at:] for at in range(1, len(words)) if not words[at].startswith("-"))


def hides(words: Command, program: str) -> bool:
    """Whether a command may run this program: it is not known to be direct, and names it."""
    if direct_commands.is_direct(tuple(map(shell_parse.text_of, words))):
        return False
    looked = re.compile(rf"(?<![\w-]){re.escape(program)}(?![\w-])", re.IGNORECASE)
    return any(not shell_parse.known(word) or looked.search(word) for word in words[1:])


def text_run(words: Command) -> str:
    """Why it cannot be told what a command has another run: a sentence; empty where it is no such command."""
    program, rest = name(words), words[1:]
    if program in ("awk", "gawk", "mawk", "nawk"):
        unsafe = any(re.search(r"system|getline|[|>@]|^-[filE]|^--", shell_parse.text_of(word)) for word in rest)
        return WRITTEN.format(program) if unsafe else ""
    if program in ("sed", "gsed"):
        return "" if _sed_is_safe(rest) else WRITTEN.format(program)
    if program in SHELLS:
        return "" if _shell_is_seen(rest, foreign=program in ("fish", "csh", "tcsh", "pwsh")) else FED.format(program)
    return _language(program, rest) if program in _TEXTS else ""


def _shell_is_seen(words: Command, foreign: bool) -> bool:
    """Whether a shell is given a script by its name, or a text that is looked into."""
    for at, word in enumerate(words):
        if word in _ASKS:
            return True
        if re.fullmatch(r"-[a-z]*c[a-z]*", word):
            return not foreign and all(map(shell_parse.known, words[at + 1 : at + 2] or (shell_parse.UNKNOWN,)))
        if not re.fullmatch(r"-[euxvln]+", word):
            return shell_parse.known(word) and not word.startswith(("-", "+", "/dev/", "/proc/"))
    return False


def _language(program: str, words: Command) -> str:
    """A script by its name is a command like any other; one in a word or on the input is not looked into."""
    before = ""
    for word in words:
        if word in _ASKS or (word == "-m" and program in ("python", "pypy")):
            return ""
        if word.startswith("-") and word != "-":
            long = re.match(r"--(?:eval|print|run|require|import|loader)", word)
            if long or (word[1] != "-" and set(word[1:]) & set(_TEXTS[program])):
                return WRITTEN.format(program)
        elif before not in _VALUES:
            script = shell_parse.known(word) and word not in ("-", "eval", "repl") and not word.startswith("/dev/")
            return "" if script else FED.format(program)
        before = word
    return FED.format(program)


def _sed_is_safe(words: Command) -> bool:
    """sed can write files and run programs: only what surely does neither is safe."""
    scripts, operands, at = list[str](), list[str](), 0
    while at < len(words):
        if words[at] in ("-e", "--expression"):
            scripts += words[at + 1 : at + 2]
            at += 1
        elif not words[at].startswith("-"):
            operands.append(words[at])
        elif not re.fullmatch(r"-[nErsuz]*i?|-i\.?\w*|--(?:quiet|silent|posix|regexp-extended|in-place)", words[at]):
            return False
        at += 1
    parts = [part.strip() for script in scripts or operands[:1] for part in _parts(script)]
    return all(_SED_SAFE.fullmatch(part) for part in parts)


def _parts(script: str) -> list[str]:
    return [script] if _SED_SAFE.fullmatch(script) else script.split(";")
