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
from contextlib import suppress
from functools import lru_cache
from typing import Literal

import msgspec

from holdfast import errors, types
from holdfast.tools import base
from holdfast.tools.permissions import sensitive_paths, shell_parse

Effect = Literal["allow", "ask", "deny"]

RUNNERS = ("shell", "start_process")
WRITERS = ("write_file", "edit_file")
# Rules that deny or ask for the second apply to the first, too: both do the same.
_SAME_AS = {"start_process": "shell", "edit_file": "write_file", "send_file": "read_file"}
# Commands that only read, if they are given names and no options.
_READ_ONLY = ("ls", "cat", "head", "tail", "wc", "grep", "git status", "git diff", "git log", "git show")

_TOOL = re.compile(r"[A-Za-z0-9_.:-]*\*?")
_RULE = re.compile(r"([^()\s]+)(?:\((.*)\)(?: in (\S.*))?)?", re.DOTALL)


class Rule(msgspec.Struct, frozen=True):
    """A permission rule for a tool, or for some of its calls."""

    effect: Effect
    tool: str
    pattern: str | None
    text: str
    origin: str
    """Origin of the rule, for the audit log."""
    folder: str | None = None
    """Folder pattern where it applies; None: the working folder."""


class RuleDecision(msgspec.Struct, frozen=True):
    """The decision about an act."""

    effect: Effect
    origin: str
    grants: tuple[str, ...] = ()
    """The grants that a lasting approval would create; empty: it can be approved only once."""
    maybe_denied: bool = False
    """Whether it may be a denied act, so that only a person can allow it."""
    unclear: bool = False
    """Whether there are deny rules that this line cannot be checked against: `--yes` does not cover it."""


class Policy(msgspec.Struct, frozen=True):
    """The rules of the settings, and the folder that their relative paths start from."""

    rules: tuple[Rule, ...] = ()
    folder: str = "/"
    home: str = "~"


def parse_rule(effect: Effect, text: str, place: str = "", origin: str = "") -> Rule:
    """Parse a rule. Raise SettingInvalid, with `place` as its prefix."""
    found = _RULE.fullmatch(text.strip())
    if found is None or not _TOOL.fullmatch(found[1]) or not text.isprintable():
        example = "Examples: shell, shell(git diff), write_file(src/**)."
        raise errors.SettingInvalid(f"{place}{errors.quote(text)} is not a valid rule. {example}")
    pattern = found[2].strip() if found[2] is not None else None
    try:
        is_valid = pattern is None or bool(pattern and shlex.split(pattern.removeprefix("=")))
    except ValueError:
        is_valid = False
    if not is_valid:
        raise errors.SettingInvalid(f"{place}{errors.quote(text)} has invalid text in its brackets.")
    if effect == "allow" and found[1] in RUNNERS and pattern is not None and not pattern.startswith("="):
        _check_usable(pattern, f"{place}{errors.quote(text)}")
    return Rule(effect, found[1], pattern, text.strip(), origin or f"rule: {effect} {text.strip()}", found[3])


def _check_usable(pattern: str, shown: str) -> None:
    """Refuse a rule that could never cover anything."""
    words, any_more = _split_pattern(pattern)
    line = shell_parse.parse_plain(pattern.removesuffix("*") if any_more else pattern)
    if line is None or line.commands != (words,):
        why = "runs other programs or is not a plain command"
        raise errors.SettingInvalid(f"{shown} {why}: allow the whole line instead, as in shell(=uv run pytest).")


def parse_grants(grants: Iterable[types.Grant]) -> tuple[Rule, ...]:
    """Return grants as rules; invalid ones are skipped."""
    found = []
    for grant in grants:
        with suppress(errors.SettingInvalid):
            found.append(parse_rule("allow", grant.rule, origin=f"grant {grant.id}: {grant.rule}"))
    return tuple(found)


def applies_to(each: Rule, tool: str) -> bool:
    """Return whether a rule applies to this tool."""
    same = tool if each.effect == "allow" else _SAME_AS.get(tool, tool)
    return _matches_tool(each.tool, tool) or _matches_tool(each.tool, same)


def denies_path(policy: Policy, tool: str, path: str) -> bool:
    """Return whether a rule denies this path to a tool."""
    act = base.Act(tool=tool, kind="look", summary="", paths=(path,))
    return any(each.effect == "deny" and _matches(each, act, policy) for each in policy.rules)


def decide(act: base.Act, policy: Policy, grants: Sequence[types.Grant] = ()) -> RuleDecision:
    """Decide about an act, and name the rule."""
    denies = [(each, _matches(each, act, policy)) for each in policy.rules if each.effect == "deny"]
    for each, certain in denies:
        if certain:
            return RuleDecision("deny", each.origin)
    for each, certain in denies:
        if certain is None:
            return RuleDecision("ask", each.origin, maybe_denied=True)
    if act.danger:
        return RuleDecision("ask", "danger")
    decided = _decide_by_rules(act, policy, parse_grants(grants))
    if decided.effect == "allow":
        return decided
    return msgspec.structs.replace(decided, grants=suggest_grants(act, policy))


def _decide_by_rules(act: base.Act, policy: Policy, granted: Sequence[Rule]) -> RuleDecision:
    """Decide by grants and rules about an act that is neither denied nor risky."""
    asking = [each for each in policy.rules if each.effect == "ask"]
    asks = next((each for each in asking if _matches(each, act, policy) is not False), None)
    allows = [*granted, *(each for each in policy.rules if each.effect == "allow" and asks is None)]
    # A rule that names this line or program covers it; a rule for a whole tool may not.
    covering = _cover(act, policy, [each for each in allows if each.pattern is not None])
    unchecked = _unchecked_rule(act, policy) if covering is None else None
    if covering is None and unchecked is None:
        covering = _cover(act, policy, allows)
    if covering is not None:
        return RuleDecision("allow", covering.origin)
    if reason := asks or unchecked:
        unclear = unchecked is not None and unchecked.effect == "deny"
        return RuleDecision("ask", reason.origin, unclear=unclear)
    return RuleDecision("allow", "read-only") if act.kind == "look" else RuleDecision("ask", "no rule")


def _unchecked_rule(act: base.Act, policy: Policy) -> Rule | None:
    """Return a deny or ask rule for commands that this line may run in a hidden way; None if it cannot.

    Only a plain line of direct commands can be checked against such rules.
    """
    rules = [each for each in policy.rules if each.effect != "allow" and each.pattern is not None]
    rules = [each for each in rules if applies_to(each, act.tool)]
    if act.commands is None or not rules:
        return None
    line = shell_parse.parse_plain(act.detail)
    if line is not None and all(map(shell_parse.is_direct, line.commands)):
        return None
    return next((each for each in rules if each.effect == "deny"), rules[0])


# --- deny and ask rules --------------------------------------------------------------------------------


def _matches_tool(pattern: str, tool: str) -> bool:
    return tool.startswith(pattern[:-1]) if pattern.endswith("*") else tool == pattern


def _matches(each: Rule, act: base.Act, policy: Policy) -> bool | None:
    """Return whether a deny or ask rule applies to this act; None: it may."""
    if act.commands is not None and each.tool in (*WRITERS, "read_file"):
        starts = _possible_folders(act, policy)
        return _any(_matches_files(each, words, starts, policy) for words in act.commands)
    if not applies_to(each, act.tool):
        return False
    if each.pattern is None:
        return True
    if act.commands is not None:
        here = _matches_folder(each, act, policy)
        runs = _any(_matches_command(_split_pattern(each.pattern)[0], words) for words in act.commands)
        return runs if here or not runs else here
    if act.kind == "run":
        return None  # The command was not analysed.
    return any(_glob_matches(each.pattern, path, policy, any_case=True) for path in act.paths)


def _any(answers: Iterable[bool | None]) -> bool | None:
    """Return True if any is True, else None if any is None, else False."""
    given = set(answers)
    return True if True in given else None if None in given else False


def _matches_folder(each: Rule, act: base.Act, policy: Policy) -> bool | None:
    """Return whether a deny or ask rule applies where a line runs: everywhere, unless it names a folder."""
    if each.folder is None:
        return True
    return None if _folder_changes(act) else _glob_matches(each.folder, _folder(act, policy), policy, any_case=True)


def _matches_command(wanted: Sequence[str], words: shell_parse.Command) -> bool | None:
    """Return whether a command begins with these words, ignoring options in between; None: it may."""
    words = shell_parse.strip_assignments(words)
    if not words or words[0] in (">", "<"):
        return False
    program = _bare(wanted[0])
    if not shell_parse.is_known(words[0]):
        return None
    matches = _begins_with(words[1:], tuple(wanted[1:])) if _bare(words[0]) == program else False
    return None if matches is False and shell_parse.may_run(words, program) else matches


def _begins_with(rest: shell_parse.Command, tail: tuple[str, ...]) -> bool | None:
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


def _matches_files(each: Rule, words: shell_parse.Command, starts: Sequence[str], policy: Policy) -> bool | None:
    """Return whether a command writes to a file of a rule, or names it; None: it may."""
    writes = words[0] == ">" and each.tool in WRITERS
    if each.pattern is None:
        return writes
    if words == shell_parse.UNREAD:
        return None
    named = words[1:] if words[0] != ">" or writes else ()
    fits = [_matches_path(each.pattern, word, starts, policy) for word in named]
    if writes:
        return fits[0] if fits else None
    # It is not known whether the command reads, writes or only names the file.
    return None if True in fits or (None in fits and words[0] == "<") else False


def _matches_path(pattern: str, word: str, starts: Sequence[str], policy: Policy) -> bool | None:
    """Return whether a word names a matching file; None: it may."""
    text = sensitive_paths.path("", shell_parse.source(word))
    if re.search(r"[$`*?\[{]", text) or not text:
        return None
    if not starts and not text.startswith(("~", "/")):
        return None
    paths = [sensitive_paths.path(start, text) for start in starts or ("/",)]
    fits = [_glob_matches(pattern, path, policy, any_case=True) for path in paths]
    # The `cd` may fail.
    return fits[-1] or (None if any(fits) else False)


def _possible_folders(act: base.Act, policy: Policy) -> tuple[str, ...]:
    """Return the folder a line runs in, and the one it changes to; nothing if unknown."""
    folder, moves = _folder(act, policy), _folder_changes(act)
    steps = [sensitive_paths.path(folder, shell_parse.source(each[1])) for each in moves if len(each) == 2]
    sure = len(moves) == len(steps) <= 1 and not re.search(r"[$`*?\[{]|(?:^|/)-", "".join(steps))
    return (folder, *steps) if sure else ()


def _folder_changes(act: base.Act) -> list[shell_parse.Command]:
    """Return the commands of a line that change the folder."""
    found = map(shell_parse.strip_assignments, act.commands or ())
    return [words for words in found if words and words[0] in ("cd", "pushd", "popd")]


def _folder(act: base.Act, policy: Policy) -> str:
    return act.paths[0] if act.paths else policy.folder


def _bare(program: str) -> str:
    return posixpath.basename(program).lower()


# --- allow rules ---------------------------------------------------------------------------------------


def _cover(act: base.Act, policy: Policy, rules: Sequence[Rule]) -> Rule | None:
    """Return one of the rules that together cover an act; None if they do not."""
    rules = [each for each in rules if _matches_tool(each.tool, act.tool)]
    whole = next((each for each in rules if each.pattern is None or _is_this_line(each, act, policy)), None)
    if whole is not None or act.kind == "run" or act.commands is not None:
        return whole if whole is not None or act.commands is None else _cover_line(act, policy, rules)
    found = [
        next((each for each in rules if _glob_matches(each.pattern or "", path, policy)), None) for path in act.paths
    ]
    return found[0] if found and None not in found else None


def _is_this_line(each: Rule, act: base.Act, policy: Policy) -> bool:
    exact = act.commands is not None and each.pattern is not None and each.pattern.startswith("=")
    return exact and each.pattern == f"={act.detail}" and _allows_in(each, _folder(act, policy), policy)


def _cover_line(act: base.Act, policy: Policy, rules: Sequence[Rule]) -> Rule | None:
    line = shell_parse.parse_plain(act.detail)
    if line is None:
        return None
    folder = sensitive_paths.path(_folder(act, policy), line.folder) if line.folder else _folder(act, policy)
    here = [each for each in rules if _allows_in(each, folder, policy)]
    # Harmless builtins need no rule in a line with other commands.
    needed = [words for words in line.commands if words[0] not in shell_parse.HARMLESS] or line.commands
    found = [next((each for each in here if _allows_command(each, words)), None) for words in needed]
    return found[0] if None not in found else None


def _allows_in(each: Rule, folder: str, policy: Policy) -> bool:
    """Return whether an allow rule applies in a folder: elsewhere the same words may do something else."""
    return folder == policy.folder if each.folder is None else _glob_matches(each.folder, folder, policy)


def _allows_command(each: Rule, words: tuple[str, ...]) -> bool:
    """Return whether a rule allows a plain command."""
    if each.pattern is None or each.pattern.startswith("="):
        return False
    wanted, anything = _split_pattern(each.pattern)
    more = words[len(wanted) :]
    return words[: len(wanted)] == wanted and (
        anything or not any(word.startswith(("-", "+")) or "=" in word for word in more)
    )


@lru_cache(maxsize=512)
def _split_pattern(pattern: str) -> tuple[tuple[str, ...], bool]:
    """Return the words of a rule, and whether any words may follow them."""
    words = tuple(shlex.split(pattern.removeprefix("=")))
    return (words[:-1], True) if words[-1] == "*" and len(words) > 1 else (words, False)


def _glob_matches(pattern: str, path: str, policy: Policy, *, any_case: bool = False) -> bool:
    path = policy.home + path[1:] if path == "~" or path.startswith("~/") else path
    if pattern == "~" or pattern.startswith("~/"):
        pattern = policy.home + pattern[1:]
    elif not pattern.startswith(("/", "**/")):
        pattern = posixpath.join(policy.folder, pattern)
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


def suggest_grants(act: base.Act, policy: Policy | None = None) -> tuple[str, ...]:
    """Return the grants that would allow this act from now on; none for risky acts."""
    policy = policy or Policy()
    if act.danger:
        return ()
    if act.commands is not None:
        made = _suggest_for_line(act, policy)
    elif act.kind == "run":
        return ()
    else:
        made = tuple(dict.fromkeys(_suggest_for_path(act.tool, path, policy) for path in act.paths)) or (act.tool,)
    try:
        sure = _cover(act, policy, [parse_rule("allow", text) for text in made])
    except errors.SettingInvalid:
        return ()
    return made if sure is not None else ()


def _suggest_for_line(act: base.Act, policy: Policy) -> tuple[str, ...]:
    """Grant read-only commands by their first words, and any other line as a whole, in this folder only."""
    folder, line = _folder(act, policy), shell_parse.parse_plain(act.detail)
    if re.search(r"[*?()]", folder):
        return ()
    looks = [_read_only_prefix(words) for words in line.commands] if line is not None and not line.folder else [""]
    if all(looks):
        return tuple(dict.fromkeys(f"{act.tool}({each}) in {folder}" for each in looks))
    return (f"{act.tool}(={act.detail}) in {folder}",)


def _read_only_prefix(words: tuple[str, ...]) -> str:
    return next((each for each in _READ_ONLY if _allows_command(Rule("allow", "", each, "", ""), words)), "")


def _suggest_for_path(tool: str, path: str, policy: Policy) -> str:
    folder = posixpath.dirname(path)
    if re.search(r"[*?()]", path) or not path.startswith("/"):
        return ""
    if folder == policy.folder or folder.startswith(policy.folder.rstrip("/") + "/"):
        return f"{tool}({folder}/**)"
    return f"{tool}({path})"
