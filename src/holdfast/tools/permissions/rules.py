"""Permission rules: decide whether an act is allowed, denied or needs an approval.

A rule names a tool, or a tool and a subject:

    shell                 every command
    shell(git diff)       commands of these words, followed only by names: no options, no `a=b`
    shell(git diff *)     commands that begin with these words
    shell(=rm build.log)  exactly this command line
    write_file(src/**)    files that match; relative to the working folder unless the pattern begins with / or ~
    github__*             all tools whose names match

A rule for commands applies in the working folder, or `in` another: `shell(make test) in packages/*`. It covers a line
only if the line is plain and all its commands are covered. A denied act is never executed; where it may be hidden, a
person is asked. An act with a risk hint is asked for every time. Otherwise grants win over `ask` rules, and those over
`allow` rules. Acts without a rule are asked for unless they only read. Rules come from the settings, grants from
people's answers.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

import msgspec

from holdfast import errors, types
from holdfast.tools import base
from holdfast.tools.permissions import sensitive_paths, shell_parse

Say = Literal["allow", "ask", "deny"]

RUNNERS = ("shell", "start_process")
WRITERS = ("write_file", "edit_file")
# Rules that deny or ask for the second apply to the first, too: both do the same.
_LIKE = {"start_process": "shell", "edit_file": "write_file"}
# Commands that only read, if they are given names and no options.
_LOOKERS = ("ls", "cat", "head", "tail", "wc", "grep", "git status", "git diff", "git log", "git show")

_TOOL = re.compile(r"[A-Za-z0-9_.:-]*\*?")
_RULE = re.compile(r"([^()\s]+)(?:\((.*)\)(?: in (\S.*))?)?", re.DOTALL)


class Rule(msgspec.Struct, frozen=True):
    """A permission rule for a tool, or for some of its calls."""

    say: Say
    tool: str
    about: str | None
    text: str
    by: str
    """Origin of the rule, for the audit log."""
    place: str | None = None
    """Folder pattern where it applies; None: the working folder."""


class Verdict(msgspec.Struct, frozen=True):
    """The decision about an act."""

    say: Say
    by: str
    remembers: tuple[str, ...] = ()
    """The grants that a lasting approval would create; empty: it can be approved only once."""
    maybe_denied: bool = False
    """Whether it may be a denied act, so that only a person can allow it."""
    unclear: bool = False
    """Whether there are deny rules that this line cannot be checked against: `--yes` does not cover it."""


class Law(msgspec.Struct, frozen=True):
    """The rules of the settings, and the folder that their relative paths start from."""

    rules: tuple[Rule, ...] = ()
    folder: str = "/"
    home: str = "~"


def rule(say: Say, text: str, place: str = "", by: str = "") -> Rule:
    """Parse a rule. Raise SettingInvalid, with `place` as its prefix."""
    found = _RULE.fullmatch(text.strip())
    if found is None or not _TOOL.fullmatch(found[1]) or not text.isprintable():
        example = "Examples: shell, shell(git diff), write_file(src/**)."
        raise errors.SettingInvalid(f"{place}{errors.quote(text)} is not a valid rule. {example}")
    about = found[2].strip() if found[2] is not None else None
    try:
        wrong = about is not None and (not about or not shlex.split(about.removeprefix("=")))
    except ValueError:
        wrong = True
    if wrong:
        raise errors.SettingInvalid(f"{place}{errors.quote(text)} has invalid text in its brackets.")
    if say == "allow" and found[1] in RUNNERS and about is not None and not about.startswith("="):
        _refuse_useless(about, f"{place}{errors.quote(text)}")
    return Rule(say, found[1], about, text.strip(), by or f"rule: {say} {text.strip()}", found[3])


def _refuse_useless(about: str, shown: str) -> None:
    """Refuse a rule that could never cover anything."""
    words, anything = _words(about)
    line = shell_parse.parse_plain(about.removesuffix("*") if anything else about)
    if line is None or line.commands != (words,):
        why = "runs other programs or is not a plain command"
        raise errors.SettingInvalid(f"{shown} {why}: allow the whole line instead, as in shell(=uv run pytest).")


def granted(grants: Iterable[types.Grant]) -> tuple[Rule, ...]:
    """Return grants as rules; invalid ones are skipped."""
    found = []
    for grant in grants:
        try:
            found.append(rule("allow", grant.rule, by=f"grant {grant.id}: {grant.rule}"))
        except errors.SettingInvalid:
            continue
    return tuple(found)


def speaks_of(each: Rule, tool: str) -> bool:
    """Return whether a rule applies to this tool."""
    return _named(each.tool, tool) or (each.say != "allow" and _named(each.tool, _LIKE.get(tool, tool)))


def forbids(law: Law, tool: str, path: str) -> bool:
    """Return whether a rule denies this path to a tool."""
    act = base.Act(tool=tool, kind="look", summary="", paths=(path,))
    return any(each.say == "deny" and _speaks(each, act, law) for each in law.rules)


def decide(act: base.Act, law: Law, grants: Sequence[types.Grant] = ()) -> Verdict:
    """Decide about an act, and name the rule."""
    denies = [(each, _speaks(each, act, law)) for each in law.rules if each.say == "deny"]
    for each, certain in denies:
        if certain:
            return Verdict("deny", each.by)
    for each, certain in denies:
        if certain is None:
            return Verdict("ask", each.by, maybe_denied=True)
    if act.danger:
        return Verdict("ask", "danger")
    said = _decide_by_rules(act, law, granted(grants))
    return said if said.say == "allow" else msgspec.structs.replace(said, remembers=remembers(act, law))


def _decide_by_rules(act: base.Act, law: Law, given: Sequence[Rule]) -> Verdict:
    """Decide by grants and rules about an act that is neither denied nor risky."""
    asks = next((each for each in law.rules if each.say == "ask" and _speaks(each, act, law) is not False), None)
    rules = [*given, *(each for each in law.rules if each.say == "allow" and asks is None)]
    # A rule that names this line or program covers it; a rule for a whole tool may not.
    by = _covered(act, law, [each for each in rules if each.about is not None])
    hidden = _hidden_by(act, law) if by is None else None
    if by is None and hidden is None:
        by = _covered(act, law, rules)
    if by is not None:
        return Verdict("allow", by.by)
    unclear = hidden is not None and hidden.say == "deny"
    if reason := asks or hidden:
        return Verdict("ask", reason.by, unclear=unclear)
    return Verdict("allow", "read-only") if act.kind == "look" else Verdict("ask", "no rule")


def _hidden_by(act: base.Act, law: Law) -> Rule | None:
    """Return a deny or ask rule for commands that this line may run in a hidden way; None if it cannot.

    Only a plain line of direct commands can be checked against such rules.
    """
    about = [each for each in law.rules if each.say != "allow" and each.about is not None and speaks_of(each, act.tool)]
    if act.commands is None or not about:
        return None
    line = shell_parse.parse_plain(act.detail)
    if line is not None and all(map(shell_parse.is_direct, line.commands)):
        return None
    return next((each for each in about if each.say == "deny"), about[0])


# --- deny and ask rules --------------------------------------------------------------------------------


def _named(pattern: str, tool: str) -> bool:
    return tool.startswith(pattern[:-1]) if pattern.endswith("*") else tool == pattern


def _speaks(each: Rule, act: base.Act, law: Law) -> bool | None:
    """Return whether a deny or ask rule applies to this act; None: it may."""
    if act.commands is not None and each.tool in (*WRITERS, "read_file"):
        starts = _starts(act, law)
        return _any(_touches(each, words, starts, law) for words in act.commands)
    if not speaks_of(each, act.tool):
        return False
    if each.about is None:
        return True
    if act.commands is not None:
        here = _here(each, act, law)
        runs = _any(_runs(_words(each.about)[0], words) for words in act.commands)
        return runs if here or not runs else here
    if act.kind == "run":
        return None  # The command was not analysed.
    return any(_fits(each.about, path, law, any_case=True) for path in act.paths)


def _any(answers: Iterable[bool | None]) -> bool | None:
    """Return True if any is True, else None if any is None, else False."""
    given = set(answers)
    return True if True in given else None if None in given else False


def _here(each: Rule, act: base.Act, law: Law) -> bool | None:
    """Return whether a deny or ask rule applies where a line runs: everywhere, unless it names a folder."""
    if each.place is None:
        return True
    return None if _moves(act) else _fits(each.place, _folder(act, law), law, any_case=True)


def _runs(wanted: Sequence[str], words: shell_parse.Command) -> bool | None:
    """Return whether a command begins with these words, ignoring options in between; None: it may."""
    words = shell_parse.strip_assignments(words)
    if not words or words[0] in (">", "<"):
        return False
    program = _bare(wanted[0])
    if not shell_parse.is_known(words[0]):
        return None
    said = _begins(words[1:], tuple(wanted[1:])) if _bare(words[0]) == program else False
    return None if said is False and shell_parse.may_run(words, program) else said


def _begins(rest: shell_parse.Command, tail: tuple[str, ...]) -> bool | None:
    """Return whether the words after a program begin with these, ignoring options; None: they may."""
    for at in range(len(rest) + 1):
        if tuple(rest[at : at + len(tail)]) == tail:
            return True
        if at < len(rest) and not shell_parse.is_known(rest[at]):
            return None
        option = at < len(rest) and rest[at].startswith("-")
        if not option and not (at > 0 and rest[at - 1].startswith("-")):
            break
    unknown = next((n for n, word in enumerate(rest[: len(tail)]) if not shell_parse.is_known(word)), 0)
    return None if unknown and rest[:unknown] == tail[:unknown] else False


def _touches(each: Rule, words: shell_parse.Command, starts: Sequence[str], law: Law) -> bool | None:
    """Return whether a command writes to a file of a rule, or names it; None: it may."""
    writes = words[0] == ">" and each.tool in WRITERS
    if each.about is None:
        return writes
    fits = [_reached(each.about, word, starts, law) for word in (words[1:] if words[0] != ">" or writes else ())]
    if words == shell_parse.UNREAD:
        return None
    if writes:
        return fits[0]
    # It is not known whether the command reads, writes or only names the file.
    return None if True in fits or (None in fits and words[0] == "<") else False


def _reached(pattern: str, word: str, starts: Sequence[str], law: Law) -> bool | None:
    """Return whether a word names a matching file; None: it may."""
    text = sensitive_paths.path("", shell_parse.source(word))
    if re.search(r"[$`*?\[{]", text) or not text:
        return None
    if not starts and not text.startswith(("~", "/")):
        return None
    fits = [_fits(pattern, sensitive_paths.path(start, text), law, any_case=True) for start in starts or ("/",)]
    # The `cd` may fail.
    return fits[-1] or (None if any(fits) else False)


def _starts(act: base.Act, law: Law) -> tuple[str, ...]:
    """Return the folder a line runs in, and the one it changes to; nothing if unknown."""
    folder, moves = _folder(act, law), _moves(act)
    steps = [sensitive_paths.path(folder, shell_parse.source(each[1])) for each in moves if len(each) == 2]
    sure = len(moves) == len(steps) <= 1 and not re.search(r"[$`*?\[{]|(?:^|/)-", "".join(steps))
    return (folder, *steps) if sure else ()


def _moves(act: base.Act) -> list[shell_parse.Command]:
    """Return the commands of a line that change the folder."""
    found = map(shell_parse.strip_assignments, act.commands or ())
    return [words for words in found if words and words[0] in ("cd", "pushd", "popd")]


def _folder(act: base.Act, law: Law) -> str:
    return act.paths[0] if act.paths else law.folder


def _bare(program: str) -> str:
    return posixpath.basename(program).lower()


# --- allow rules ---------------------------------------------------------------------------------------


def _covered(act: base.Act, law: Law, rules: Sequence[Rule]) -> Rule | None:
    """Return one of the rules that together cover an act; None if they do not."""
    about = [each for each in rules if _named(each.tool, act.tool)]
    whole = next((each for each in about if each.about is None or _is_this_line(each, act, law)), None)
    if whole is not None:
        return whole
    if act.commands is not None:
        return _covered_line(act, law, about)
    if act.kind == "run":
        return None
    found = [next((each for each in about if _fits(each.about or "", path, law)), None) for path in act.paths]
    return found[0] if found and None not in found else None


def _is_this_line(each: Rule, act: base.Act, law: Law) -> bool:
    exact = act.commands is not None and each.about is not None and each.about.startswith("=")
    return exact and each.about == f"={act.detail}" and _holds(each, _folder(act, law), law)


def _covered_line(act: base.Act, law: Law, about: Sequence[Rule]) -> Rule | None:
    line = shell_parse.parse_plain(act.detail)
    if line is None:
        return None
    folder = sensitive_paths.path(_folder(act, law), line.folder) if line.folder else _folder(act, law)
    here = [each for each in about if _holds(each, folder, law)]
    # Harmless builtins need no rule in a line with other commands.
    needed = [words for words in line.commands if words[0] not in shell_parse.HARMLESS] or line.commands
    found = [next((each for each in here if _is_of(each, words)), None) for words in needed]
    return found[0] if None not in found else None


def _holds(each: Rule, folder: str, law: Law) -> bool:
    """Return whether an allow rule applies in a folder: elsewhere the same words may do something else."""
    return folder == law.folder if each.place is None else _fits(each.place, folder, law)


def _is_of(each: Rule, words: tuple[str, ...]) -> bool:
    """Return whether a rule allows a plain command."""
    if each.about is None or each.about.startswith("="):
        return False
    wanted, anything = _words(each.about)
    more = words[len(wanted) :]
    return words[: len(wanted)] == wanted and (
        anything or not any(word.startswith(("-", "+")) or "=" in word for word in more)
    )


@lru_cache(maxsize=512)
def _words(about: str) -> tuple[tuple[str, ...], bool]:
    """Return the words of a rule, and whether any words may follow them."""
    words = tuple(shlex.split(about.removeprefix("=")))
    return (words[:-1], True) if words[-1] == "*" and len(words) > 1 else (words, False)


def _fits(pattern: str, path: str, law: Law, *, any_case: bool = False) -> bool:
    path = law.home + path[1:] if path == "~" or path.startswith("~/") else path
    if pattern == "~" or pattern.startswith("~/"):
        pattern = law.home + pattern[1:]
    elif not pattern.startswith(("/", "**/")):
        pattern = posixpath.join(law.folder, pattern)
    return _glob(pattern, any_case).fullmatch(path) is not None


@lru_cache(maxsize=512)
def _glob(pattern: str, any_case: bool) -> re.Pattern[str]:
    """`*` and `?` within one folder, `**` across folders."""
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    signs = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = "".join(signs.get(piece, re.escape(piece)) for piece in pieces)
    # A trailing /** also matches the folder itself.
    text = text[: -len("/.*")] + "(?:/.*)?" if text.endswith("/.*") and len(text) > 3 else text
    return re.compile(text, re.DOTALL | (re.IGNORECASE if any_case else re.NOFLAG))


# --- grants --------------------------------------------------------------------------------------------


def remembers(act: base.Act, law: Law | None = None) -> tuple[str, ...]:
    """Return the grants that would allow this act from now on; none for risky acts."""
    law = law or Law()
    if act.danger:
        return ()
    if act.commands is not None:
        made = _remembered_line(act, law)
    elif act.kind == "run":
        return ()
    else:
        made = tuple(dict.fromkeys(_remembered_path(act.tool, path, law) for path in act.paths)) or (act.tool,)
    try:
        sure = _covered(act, law, [rule("allow", text) for text in made])
    except errors.SettingInvalid:
        return ()
    return made if sure is not None else ()


def _remembered_line(act: base.Act, law: Law) -> tuple[str, ...]:
    """Grant read-only commands by their first words, and any other line as a whole, in this folder only."""
    folder, line = _folder(act, law), shell_parse.parse_plain(act.detail)
    if re.search(r"[*?()]", folder):
        return ()
    looks = [_looker(words) for words in line.commands] if line is not None and not line.folder else [""]
    if all(looks):
        return tuple(dict.fromkeys(f"{act.tool}({each}) in {folder}" for each in looks))
    return (f"{act.tool}(={act.detail}) in {folder}",)


def _looker(words: tuple[str, ...]) -> str:
    return next((each for each in _LOOKERS if _is_of(Rule("allow", "", each, "", ""), words)), "")


def _remembered_path(tool: str, path: str, law: Law) -> str:
    folder = posixpath.dirname(path)
    if re.search(r"[*?()]", path) or not path.startswith("/"):
        return ""
    if folder == law.folder or folder.startswith(law.folder.rstrip("/") + "/"):
        return f"{tool}({folder}/**)"
    return f"{tool}({path})"
