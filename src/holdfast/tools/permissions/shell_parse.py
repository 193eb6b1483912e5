"""Command lines: plain ones, which rules may allow, and the commands that any other line may run.

A line is plain if every shell reads it the same way: commands of literal words, joined by `;`, `&&`, `||`, `|` or a new
line, with no redirection except to /dev/null or of one stream into another, and none of its commands runs another
program or changes the shell. Only plain lines are ever allowed by a rule or a grant for commands.

Any other line is read approximately, to find denied or risky commands in it. That reading is generous: text in quotes
and substitutions is searched for commands, too, and some that would never run are found.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator

import msgspec

UNKNOWN = "\0"
"""Prefix of a word whose value is known only when the line runs: a variable, a wildcard, a substitution."""
MAX_LENGTH = 20_000
MAX_DEPTH = 8
MAX_COMMANDS = 300
MAX_WRAPPED_WORDS = 100
"""A command that runs another one and has more words than this is not analysed."""

Command = tuple[str, ...]
UNREAD: Command = (UNKNOWN,)
"""Stands for a part of a line that could not be read."""


def names(text: str) -> frozenset[str]:
    """Return a set of names from a text of them."""
    return frozenset(text.split())


def is_known(word: str) -> bool:
    """Return whether the value of a word is known before the line runs."""
    return not word.startswith(UNKNOWN)


def source(word: str) -> str:
    """Return a word as it was written."""
    return word.removeprefix(UNKNOWN)


def is_odd(character: str) -> bool:
    """Return whether a character is invisible, or looks like another one."""
    if character in "\n\t" or (character.isascii() and character.isprintable()):
        return False
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp")


def _is_unreadable(text: str) -> bool:
    return len(text) > MAX_LENGTH or any(map(is_odd, text))


# --- programs that run others --------------------------------------------------------------------------

SHELLS = names("sh dash ash bash zsh ksh mksh fish csh tcsh rbash pwsh")
INTERPRETERS = names(
    "python pypy perl ruby node nodejs bun php deno lua luajit rscript r julia elixir scala groovy ipython irb tclsh "
    "osascript"
)
_WRAPPERS = names(
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
# These run another program only with one of these words.
_WRAPPING_WORDS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("uv", "poetry", "pipenv", "dotnet", "rails", "cargo", "go"), names("run runner")),
    **dict.fromkeys(("npm", "pnpm", "yarn"), names("run run-script exec dlx x explore node")),
    **dict.fromkeys(("docker", "podman", "kubectl", "nerdctl", "docker-compose", "oc", "lxc"), names("run exec")),
    "git": names("bisect foreach filter-branch difftool mergetool rebase instaweb"),
    "bundle": names("exec"),
    "gh": names("alias extension codespace"),
}
_FIND_ACTIONS = re.compile(r"-(?:exec(?:dir)?|ok(?:dir)?|delete|fprint[0f]?|fls)")
_COMMAND_OPTIONS = names("-exec -execdir -ok -okdir -x -X --exec --exec-batch --")


def program_name(words: Command) -> str:
    """Return the name of a command's program, without folder and version: /usr/bin/python3.12 is python."""
    bare = posixpath.basename(source(words[0])).lower() if words else ""
    return bare if bare in _WRAPPERS else re.sub(r"(?<=[a-z])[\d.]+$", "", bare)


def runs_others(words: Command) -> bool:
    """Return whether a command runs another program that its words name."""
    program = program_name(words)
    if program == "find":
        return any(not is_known(word) or _FIND_ACTIONS.fullmatch(word) for word in words[1:])
    if program in _WRAPPERS or program in SHELLS or program in INTERPRETERS:
        return True
    return not _WRAPPING_WORDS.get(program, frozenset()).isdisjoint(words[1:])


class DirectCommand(msgspec.Struct, frozen=True):
    """A program that runs no other that its words or its input name.

    `first`: only with one of these first words, if any are given. `unless`: not with words that match this.
    """

    first: frozenset[str] = frozenset()
    unless: str = ""


# A deny rule can be checked only against these: any other program may start a denied one. A program that is missing
# here costs a question. Many programs accept any unique prefix of a long option, such as `sort --co=PROGRAM`. Build
# tools and test runners do what files of the project say, which no rule about a command line can see.
_DIRECT = {
    **dict.fromkeys(
        names(
            """
            basename cat cd cksum cmp comm cp cut date df diff dirname du echo egrep expr false fgrep file fold grep
            head hexdump hostname id jq join ln locale ls md5sum mkdir mktemp mv nl nproc od paste printenv ps pwd
            readlink realpath rm rmdir ruff seq sha1sum sha256sum sha512sum sleep stat strings sum tail tee
            touch tr tree true tsc tty uname uniq uptime wc which whoami :
            """
        ),
        DirectCommand(),
    ),
    "cargo": DirectCommand(names("bench build check clean clippy doc fmt test tree update"), r"--config.*|-Z.*"),
    "find": DirectCommand(unless=r"-(?:exec|ok).*"),
    "git": DirectCommand(
        names(
            """
            add blame branch checkout cherry-pick commit describe diff fetch log ls-files merge mv pull push remote
            reset restore rev-parse revert rm shortlog show stash status switch tag
            """
        ),
        # push --exec and --receive-pack, fetch --upload-pack, as short as git accepts them.
        r"--ex?(?:=.*)?|--(?:exe|rece|upl).*|ext::.*",
    ),
    "go": DirectCommand(names("build clean doc fmt list test version vet"), r"-.*(?:exec|tool|flags|overlay).*"),
    "make": DirectCommand(unless=r".*=.*|-[^-]*[fE].*|--[efm].*"),
    "mypy": DirectCommand(unless=r"--(?:python-e|ins).*"),
    "npm": DirectCommand(names("ci install ls outdated test view"), r"-.*"),
    # xdist starts the interpreter that --tx and --px name; -o sets any option.
    "pytest": DirectCommand(unless=r"--(?:tx|px|override).*|-[^-]*o.*"),
    "rg": DirectCommand(unless=r"--(?:pre|hostname-bin).*"),
    "sort": DirectCommand(unless=r"--co.*"),
}


def is_direct(words: Command) -> bool:
    """Return whether a command certainly runs no other program that its words or its input name."""
    found = _DIRECT.get(words[0]) if words and all(map(is_known, words)) else None
    if found is None or (found.first and words[1:2] and words[1] not in found.first):
        return False
    return not any(re.fullmatch(found.unless, word, re.DOTALL) for word in words[1:])


# --- plain lines ---------------------------------------------------------------------------------------

HARMLESS = names("echo pwd true false :")
"""Builtins that only print. In a line with other commands they need no permission."""
_BUILTINS = names(
    """
    . source alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown
    enable eval exec exit export fc fg getopts hash help history jobs kill let local logout mapfile popd printf
    pushd read readarray readonly return set shift shopt suspend test [ times trap type typeset ulimit umask unalias
    unset wait if then elif else fi for in do done while until case esac select function coproc time ! [[ ]] { } ((
    """
)
_PIECE = re.compile(r"""(?P<bare>[\w@%+:,./^=-]+|(?<=\w)~)|'(?P<single>[^']*)'|"(?P<double>[^"$`\\!]*)\"""")
_PROGRAM = re.compile(r"[\w@%+:,./^-]+")
_JOIN = re.compile(r"&&|\|\|?|;|\n")
_STREAM = re.compile(r"(?:[0-9]?>>?[ \t]*/dev/null|<[ \t]*/dev/null|[0-9]?>&[0-9])(?=[ \t\n;|]|$)")


class PlainLine(msgspec.Struct, frozen=True):
    """The commands of a plain line, and the folder that a leading `cd` enters."""

    commands: tuple[Command, ...]
    folder: str = ""


def parse_plain(text: str) -> PlainLine | None:
    """Parse a plain line. Return None if the line is not plain."""
    if _is_unreadable(text):
        return None
    commands, joins = list[Command](), list[str]()
    words, at = list[str](), 0
    while at < len(text):
        if text[at] in " \t":
            at += 1
        elif found := _STREAM.match(text, at):
            at = found.end()
        elif found := _JOIN.match(text, at):
            at = found.end()
            if words:
                commands.append(tuple(words))
                joins.append(found[0])
                words = []
            elif found[0] != "\n":
                return None
        elif word := _parse_literal(text, at):
            words.append(word[0])
            at = word[1]
        else:
            return None
    commands += [tuple(words)] if words else []
    if not words and joins and joins.pop() not in (";", "\n"):
        return None
    return _enter_folder(commands, joins)


def _parse_literal(text: str, at: int) -> tuple[str, int] | None:
    """Return the word that starts here, without quotes, and its end; None if it is not literal."""
    pieces = list[str]()
    while found := _PIECE.match(text, at):
        pieces.append(found["bare"] or found["single"] or found["double"] or "")
        at = found.end()
    if not pieces or (at < len(text) and text[at] not in " \t\n;|<>&"):
        return None
    return "".join(pieces), at


def _enter_folder(commands: list[Command], joins: list[str]) -> PlainLine | None:
    """A line may start with `cd` if everything else depends on its success."""
    folder = ""
    if commands and commands[0][0] == "cd":
        depends = joins[:1] == ["&&"] and set(joins) <= {"&&", "|"}
        if not depends or len(commands[0]) != 2 or re.match(r"-|$", commands[0][1]):
            return None
        folder, commands = commands[0][1], commands[1:]
    if not all(map(_is_plain_command, commands)):
        return None
    return PlainLine(tuple(commands), folder) if commands else None


def _is_plain_command(words: Command) -> bool:
    is_builtin = posixpath.basename(words[0]) in _BUILTINS
    return _PROGRAM.fullmatch(words[0]) is not None and not is_builtin and not runs_others(words)


# --- any line ------------------------------------------------------------------------------------------

_KEYWORDS = names("if then else elif fi while until do done esac ! { } time coproc in")
_OPERATORS = ("&&", "||", "|", "|&", ";", "&")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=")
_STANDARD_STREAM = re.compile(r"/dev/(?:null|stdout|stderr|stdin|tty|zero|fd/\d+)|/proc/self/fd/\d+")
_SUBSTITUTION = re.compile(r"\$\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)|`((?:[^`\\]|\\.)*)`", re.DOTALL)
_HEREDOC = re.compile(r"<<(-?)[ \t]*(['\"\\]?)([\w.-]+)['\"]?([^\n]*)\n(.*?)\n\t*\3(?=\n|$)", re.DOTALL)
_TOKEN = re.compile(
    r"""(?P<space>[ \t]+|\\\n|(?<![^\s;&|()<>])\#[^\n]*)
    |(?P<redirect>(?:\d+|\{\w+\})?(?:<<<|<>|>>|>\||[<>]&|<(?![(<])|>(?!\())|&>>?)
    |(?P<open>\$\(|[<>]\(|\()|(?P<close>\))|(?P<tick>`)
    |(?P<join>[;&|\n]+)
    |(?P<word>(?:'[^']*'|"(?:[^"\\]|\\.)*"|\$'(?:[^'\\]|\\.)*'|\$\{(?:[^{}'"]|"[^"]*"|'[^']*'|\{[^{}]*\})*\}
        |\\[^\n]|\\\n|\$(?![({'])|[^\s;&|<>()`'"\\$])+)""",
    re.DOTALL | re.VERBOSE,
)
_WORD_PIECE = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)|(\$'.*?'|\$\{.*?\}|\$[\w@*#?$!-])|(.)""", re.DOTALL)
# Constructs that run text from variables or array indexes, or that bash reads in another way than it looks.
_OBSCURE = re.compile(r"\$\{!|@.\}|\$\[|\w\[[^\]]*[$`]|\$\\\n|>&\S*\$|\)(?=\w)|<<-?[ \t]*\w+[^\n]*(?:\n.*\\\n|$)")
_INDEXES = re.compile(r"\(\(|\[\[|\$\[|\$\{|\b(?:let|declare|typeset|local|unset|read|mapfile|readarray)\b|\s-[vp]\b")


def strip_assignments(words: Command) -> Command:
    """Return a command without the variables that are set before it."""
    at = next((n for n, word in enumerate(words) if not _ASSIGNMENT.match(source(word))), len(words))
    return words[at:]


def find_commands(text: str, depth: int = 0) -> list[Command]:
    """Return the commands that a line may run, including those of programs that run others. Never raises.

    A redirection is a command of its own: `>` or `<`, and the path.
    """
    found = list[Command]()
    if depth > MAX_DEPTH or _is_unreadable(text):
        return [UNREAD]
    quoted = re.search(r"'[^']*[$`][^']*'|\\[$`]", text)
    if _OBSCURE.search(text) or (quoted and _INDEXES.search(text)):
        found.append(UNREAD)
    for words in _Lexer(text, depth).commands():
        found.append(words)
        found += _find_wrapped(strip_assignments(words), depth)
        if len(found) > MAX_COMMANDS:
            return [*found[:MAX_COMMANDS], UNREAD]
    return found


class _Lexer:
    """Splits a line into commands. Substitutions and subshells are separate commands.

    A line that is malformed, or uses `case`, functions, arrays or `(( ))`, has UNREAD among its commands.
    """

    def __init__(self, text: str, depth: int) -> None:
        self._text, self._depth = _HEREDOC.sub(_keep_heredoc, text), depth
        is_obscure = "((" in text or (depth and "<<" in text)
        self._found, self._words = [UNREAD] if is_obscure else list[Command](), list[str]()
        self._outer = list[tuple[str, list[str]]]()
        self._redirect = ""
        self._operator, self._has_command = "", False
        self._keywords = Counter[str]()

    def commands(self) -> list[Command]:
        at = 0
        while at < len(self._text) and len(self._found) <= MAX_COMMANDS:
            token = _TOKEN.match(self._text, at)
            if token is None:
                return [*self._found, tuple(self._words) or UNREAD, UNREAD]
            self._take(token, joined=at > 0 and self._text[at - 1] not in " \t\n;&|(")
            at = token.end()
        self._flush()
        count = self._keywords
        loops = count["for"] + count["while"] + count["until"]
        is_whole = (
            (count["if"], count["do"], count["{"]) == (count["fi"], count["done"], count["}"])
            and (count["then"], count["do"], count["in"]) == (count["if"] + count["elif"], loops, 0)
        )  # fmt: skip
        if self._outer or self._redirect or not is_whole or self._operator not in ("", ";", "&"):
            self._found.append(UNREAD)
        return self._found

    def _take(self, token: re.Match[str], joined: bool) -> None:
        kind, text = token.lastgroup, token[0]
        if self._redirect and kind not in ("word", "space"):
            self._found.append(UNREAD)
            self._redirect = ""
        if kind == "join":
            self._join(text)
        elif kind != "space":
            self._operator, self._has_command = "", True
        if kind == "word":
            self._add(*_unquote(text), joined)
        elif kind == "redirect":
            self._redirect = text.lstrip("0123456789")
        elif kind == "open" or (kind == "tick" and not any(each == "`" for each, _ in self._outer)):
            if text == "(":
                # After a word it begins a function, an array or a pattern.
                self._found += [UNREAD] if self._words and self._words[-1] not in _KEYWORDS else []
                self._flush()
            else:
                self._add(UNKNOWN, "", joined)
            self._outer.append((text, self._words))
            self._words, self._has_command = [], False
        elif kind in ("close", "tick"):
            self._flush()
            opened, self._words = self._outer.pop() if self._outer else ("", [])
            if not opened or (opened == "`") != (kind == "tick"):
                self._found.append(UNREAD)

    def _join(self, text: str) -> None:
        """End a command. An operator needs a command on its left, and all but `;` and `&` one on their right."""
        self._flush()
        operator = text.strip("\n")
        if operator:
            is_valid = self._has_command and not text.startswith("\n") and operator in _OPERATORS
            self._found += [] if is_valid else [UNREAD]
            self._operator = operator
        self._has_command = False

    def _add(self, word: str, inner: str, joined: bool) -> None:
        for found in _SUBSTITUTION.finditer(inner):
            self._found += find_commands(found[1] or re.sub(r"\\([$`\\\"])", r"\1", found[2] or ""), self._depth + 1)
        rest = _SUBSTITUTION.sub("", inner)
        if re.search(r"\$\(|`", rest) or rest.count("${") > rest.count("}"):
            self._found.append(UNREAD)
        if self._redirect:
            sign, self._redirect = self._redirect, ""
            is_copy = sign.endswith("&") and re.fullmatch(r"\d*-?", word)
            if sign != "<<<" and not is_copy and not _STANDARD_STREAM.fullmatch(word):
                self._found.append(("<" if sign in ("<", "<&") else ">", word))
        elif joined and self._words:
            last = self._words[-1]
            unknown = not is_known(last) or not is_known(word)
            self._words[-1] = UNKNOWN * unknown + source(last) + source(word)
        else:
            self._words.append(word)

    def _flush(self) -> None:
        words, self._words = self._words, []
        while words and words[0] in _KEYWORDS:
            self._keywords[words[0]] += 1
            words = words[1:]
        if words[:1] == ["for"] and (len(words) == 2 or words[2:3] == ["in"]):
            self._keywords["for"] += 1
            self._found.append(tuple(f"{words[1]}={source(word)}" for word in [*words[3:], ""]))
        elif words[:1] == ["function"]:
            self._found.append(UNREAD)
            self._words = words[2:]
            self._flush()
        elif words[:1] in (["for"], ["case"], ["select"]) or (words[:1] == ["[["] and words[-1] != "]]"):
            self._found.append(UNREAD)
        elif words and words[0] != "[[":
            self._found.append(tuple(words))


def _keep_heredoc(found: re.Match[str]) -> str:
    """Replace a here-document by the substitutions in it; in one with a quoted delimiter there are none."""
    return f" {found[4]}\n" + ("" if found[2] else _keep_substitutions(found[5]))


def _keep_substitutions(text: str) -> str:
    rest = _SUBSTITUTION.sub("", text)
    found = " ".join(each[0] for each in _SUBSTITUTION.finditer(text))
    unread = " $(" if "$(" in rest or "`" in rest else ""
    return f"echo {found}{unread}" if found or unread else ""


def _unquote(text: str) -> tuple[str, str]:
    """Return a word without quotes, and its text in double quotes or braces, which may have substitutions."""
    pieces, inner, unknown = list[str](), list[str](), False
    for single, double, escaped, variable, bare in _WORD_PIECE.findall(text):
        if double:
            inner.append(double)
            unknown = unknown or re.search(r"(?<!\\)[$`]", double) is not None
            pieces.append(re.sub(r"\\([$`\\\"])", r"\1", double))
        elif variable:
            inner.append(variable)
            unknown = True
            pieces.append(variable)
        else:
            unknown = unknown or (bare != "" and bare in "*?[{")
            pieces.append(single or ("" if escaped == "\n" else escaped) or bare)
    word = "".join(pieces)
    unknown = (unknown and word not in ("{}", "[", "[[", "{")) or re.match(r"~[^/]", text) is not None
    return UNKNOWN * unknown + word, " ".join(inner)


def _find_wrapped(words: Command, depth: int) -> list[Command]:
    """Return the commands that a program which runs others is given, as words or as a text."""
    if not words or not runs_others(words):
        return []
    if depth >= MAX_DEPTH or len(words) > MAX_WRAPPED_WORDS:
        return [UNREAD]
    found, program = list[Command](), program_name(words)
    given = (*words, UNKNOWN) if program == "xargs" else words
    for at in _wrapped_starts(given):
        inner = tuple(UNKNOWN if each == "{}" else each for each in given[at:])
        found += [inner, *_find_wrapped(strip_assignments(inner), depth + 1)]
    if program in SHELLS or program in ("eval", "trap", "ssh", "watch", "script", "su", "env", "parallel", "find",
                                        "xargs"):  # fmt: skip
        for text in [" ".join(given[1:])] if program == "eval" else given[1:]:
            if not is_known(text) and program != "find" and text != UNKNOWN:
                found.append(UNREAD)
            elif re.search(r"[\s;&|<>$`()]", text):
                found += find_commands(text.removeprefix("-S").removeprefix("--split-string="), depth + 1)
    return found


def _wrapped_starts(words: Command) -> Iterator[int]:
    """Yield where another command may begin: after options, variables and numbers, and after `-exec`."""
    first = next((n for n, word in enumerate(words) if n and not re.match(r"-|\w+=|\d+[smhd]?$", word)), 0)
    for at in range(1, len(words)):
        if (at == first and program_name(words) != "find") or words[at - 1] in _COMMAND_OPTIONS:
            yield at


def may_run(words: Command, program: str) -> bool:
    """Return whether a command may run this program: it is not direct, and names it or has unknown words."""
    if is_direct(tuple(map(source, words))):
        return False
    named = re.compile(rf"(?<![\w-]){re.escape(program)}(?![\w-])", re.IGNORECASE)
    return any(not is_known(word) or named.search(word) for word in words[1:])
