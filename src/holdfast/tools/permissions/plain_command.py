"""Plain command lines: the only ones a rule or a grant can cover by the words of their commands.

A line is plain if every shell reads it the same way and nothing in it is filled in, set or kept for later: commands of
literal words, joined by `;`, `&&`, `||`, `|` or a new line, with no redirection but to /dev/null or of one stream into
another. No command of it runs another by what stands in its words, or changes the shell the others run in. Whatever
this file does not name is not plain: a person is asked, and can allow that very line.
"""

from __future__ import annotations

import posixpath
import re

import msgspec

from holdfast.tools.permissions import shell_parse, wrapper_commands

# They print or say something, and nothing they are given is looked at by the shell.
NEUTRAL = frozenset({"echo", "pwd", "true", "false", ":"})
# All else the shell does itself may change what the next command is, or run what stands in a word.
_SHELLS_OWN = shell_parse.names(
    """
    . source alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown
    enable eval exec exit export fc fg getopts hash help history jobs kill let local logout mapfile popd printf
    pushd read readarray readonly return set shift shopt suspend test [ times trap type typeset ulimit umask unalias
    unset wait if then elif else fi for in do done while until case esac select function coproc time ! [[ ]] { } ((
    """
)

_PIECE = re.compile(r"""(?P<bare>[\w@%+:,./^=-]+|(?<=\w)~)|'(?P<single>[^']*)'|"(?P<double>[^"$`\\!]*)\"""")
_PROGRAM = re.compile(r"[\w@%+:,./^-]+")
_JOINS = re.compile(r"&&|\|\|?|;|\n")
_STREAMS = re.compile(r"(?:[0-9]?>>?[ \t]*/dev/null|<[ \t]*/dev/null|[0-9]?>&[0-9])(?=[ \t\n;|]|$)")


class Plain(msgspec.Struct, frozen=True):
    """A plain line: its commands by words, and the folder it goes to first, if it does."""

    commands: tuple[tuple[str, ...], ...]
    folder: str = ""


def plain(text: str) -> Plain | None:
    """A line as its commands; None: it is not plain."""
    if len(text) > shell_parse.LONGEST or any(map(shell_parse.odd, text)):
        return None
    commands, joins = list[tuple[str, ...]](), list[str]()
    words, at = list[str](), 0
    while at < len(text):
        if text[at] in " \t":
            at += 1
        elif found := _STREAMS.match(text, at):
            at = found.end()
        elif found := _JOINS.match(text, at):
            at = found.end()
            if words:
                commands.append(tuple(words))
                joins.append(found[0])
                words = []
            elif found[0] != "\n":
                return None
        elif word := _word(text, at):
            words.append(word[0])
            at = word[1]
        else:
            return None
    commands += [tuple(words)] if words else []
    if not words and joins and joins.pop() not in (";", "\n"):
        return None
    return _moved(commands, joins)


def _word(text: str, at: int) -> tuple[str, int] | None:
    """The word that begins here, without its quotes, and where it ends; None: not all of it is literal."""
    said = list[str]()
    while found := _PIECE.match(text, at):
        said.append(found["bare"] or found["single"] or found["double"] or "")
        at = found.end()
    if not said or (at < len(text) and text[at] not in " \t\n;|<>&"):
        return None
    return "".join(said), at


def _moved(commands: list[tuple[str, ...]], joins: list[str]) -> Plain | None:
    """A line that goes to a folder first does nothing at all where it cannot go there: all else hangs on `&&`."""
    folder = ""
    if commands and commands[0][0] == "cd":
        onward = joins[:1] == ["&&"] and set(joins) <= {"&&", "|"}
        if not onward or len(commands[0]) != 2 or re.match(r"-|$", commands[0][1]):
            return None
        folder, commands = commands[0][1], commands[1:]
    if not all(map(_alone, commands)):
        return None
    return Plain(tuple(commands), folder) if commands else None


def _alone(words: tuple[str, ...]) -> bool:
    """Whether a command is what its words say, and no other."""
    program = words[0]
    own = posixpath.basename(program) in _SHELLS_OWN
    return _PROGRAM.fullmatch(program) is not None and not own and not wrapper_commands.runs_others(words)
