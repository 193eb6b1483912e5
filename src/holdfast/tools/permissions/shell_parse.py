"""The commands in any command line, as far as they can be told before it runs: for what is forbidden or dangerous.

Nothing is allowed by what is found here, so that the reading is generous: what stands in brackets, quotes, loops and
texts is looked for commands, and some that would never run are found too. A word that is known only when the line runs
(a variable, a wildcard, what another command prints) begins with NUL. A command that is NUL alone stands for whatever
could not be read. Variables that are set come as words before the program; a file that is written or read is a command
of its own, `>` or `<` and the path.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterable

UNKNOWN = "\0"
LONGEST = 20_000
DEEPEST = 12
MOST = 300
Command = tuple[str, ...]
UNREAD: Command = (UNKNOWN,)

_ASSIGNED = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=")
_REDIRECT = re.compile(r"(?:\d*|\{\w+\})(<<<|<<-|<<|<>|<&|>>|>&|>\||<(?!\()|>(?!\())|(&>>|&>)")
_SUM = re.compile(r"\$\(\(((?:[^()]|\([^()]*\))*)\)\)")
_CALCULATION = re.compile(r"[\s\w+*/%<>=&|^~!?:,$()-]*[\w)+-]\s*")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_STREAM = re.compile(r"/dev/(?:null|stdout|stderr|stdin|tty|zero|fd/\d+)|/proc/self/fd/\d+")
# Here bash runs what stands in the index of an array, though it was in quotes.
_INDEXES = re.compile(r"\(\(|\[\[|\$\[|\$\{|\b(?:let|declare|typeset|local|unset|read|mapfile|readarray)\b|\s-[vp]\b")


def names(text: str) -> frozenset[str]:
    """A set of names, from a text of them."""
    return frozenset(text.split())


_KEYWORDS = names("if then else elif fi while until do done esac ! { } time coproc in")


class Unclear(Exception):
    """From here on it cannot be told what the line is."""


def known(word: str) -> bool:
    """Whether a word is what it says, before anything runs."""
    return not word.startswith(UNKNOWN)


def text_of(word: str) -> str:
    """A word as it was written, whether or not it is known what it will be."""
    return word.removeprefix(UNKNOWN)


def odd(character: str) -> bool:
    """Whether a character cannot be seen, or looks like another one."""
    if character in "\n\t" or (character.isascii() and character.isprintable()):
        return False
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp")


def program_first(words: Command) -> Command:
    """A command without the variables that are set before it."""
    at = next((n for n, word in enumerate(words) if not _ASSIGNED.match(text_of(word))), len(words))
    return words[at:]


def found(text: str, depth: int = 0) -> list[Command]:
    """The commands of a line, in the order they are written. Never raises."""
    reader = _Reader(text, depth, [])
    try:
        # Bash joins such lines before it tells what a dollar begins.
        if depth > DEEPEST or len(text) > LONGEST or any(map(odd, text)) or "$\\\n" in text:
            raise Unclear
        reader.commands()
    except (Unclear, RecursionError):
        reader.found.append(UNREAD)
    if reader.hidden and _INDEXES.search(text):
        reader.found.append(UNREAD)
    return reader.found


class _Reader:
    """The text, how far it was read, and what was found until there."""

    def __init__(self, text: str, depth: int, into: list[Command]) -> None:
        self._text, self._at, self._depth, self.found = text, 0, depth, into
        self._pending: list[tuple[str, bool, bool]] = []
        self.hidden = False
        """Whether something is written that would be run or filled in if it were not in quotes."""

    def _peek(self, count: int = 1) -> str:
        return self._text[self._at : self._at + count]

    def _keep(self, words: Iterable[str]) -> None:
        self.found.append(tuple(words))
        if len(self.found) > MOST:
            raise Unclear

    # --- commands ------------------------------------------------------------------------------------

    def commands(self, closing: bool = False) -> None:
        """Commands up to the end, or up to the bracket that closes, which is read too."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise Unclear
        words, setting = list[str](), True
        while self._at < len(self._text):
            mark, test = self._peek(), words[:1] == ["[["] and words[-1:] != ["]]"]
            if mark in " \t" or (test and mark in "\n<>()&|"):
                self._at += 1
            elif self._peek(2) == "\\\n":
                self._at += 2
            elif mark == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif sign := _REDIRECT.match(self._text, self._at):
                self._redirect(sign)
            elif mark in "\n;&|()":
                self._flush(words)
                words = []
                if self._joined(mark) and closing:
                    self._depth -= 1
                    return
            else:
                # Only before a program are variables set.
                setting = not words or (setting and _ASSIGNED.match(text_of(words[-1])) is not None)
                words.append(self._value() if setting else self._word())
        self._flush(words)
        self._depth -= 1
        if closing or self._pending:
            raise Unclear

    def _joined(self, mark: str) -> bool:
        """Behind what ends a command; whether a bracket was closed."""
        self._at += 1
        if mark == "\n":
            pending, self._pending = self._pending, []
            for each in pending:
                self._body(*each)
        elif mark == "(":
            self.commands(closing=True)
        return mark == ")"

    def _flush(self, words: list[str]) -> None:
        while words and words[0] in _KEYWORDS:
            words = words[1:]
        if words[:1] in (["for"], ["select"]):
            self._keep(f"{words[1]}={text_of(word)}" for word in [*words[3:], ""] if len(words) > 1)
        elif words[:1] == ["function"]:
            self._flush(words[2:])
        elif words and words[0] not in ("case", "[["):
            self._keep(words)

    def _redirect(self, sign: re.Match[str]) -> None:
        self._at, kind = sign.end(), sign[1] or sign[2]
        while self._peek() in (" ", "\t"):
            self._at += 1
        begun = self._at
        target = self._word()
        if kind in ("<<", "<<-"):
            raw = self._text[begun : self._at]
            self._pending.append((text_of(target), any(mark in raw for mark in "'\"\\"), kind == "<<-"))
        elif kind != "<<<" and not (kind in (">&", "<&") and re.fullmatch(r"\d*-?", target)):
            if kind == ">&" and "$" in target:
                # Bash fills such a name in twice: quotes do not protect what stands in it.
                raise Unclear
            if not _STREAM.fullmatch(target):
                self._keep(("<" if kind in ("<", "<&") else ">", target))

    def _body(self, end: str, raw: bool, tabs: bool) -> None:
        """A text in the lines that follow; what stands in it may be run."""
        begun = self._at
        while self._at < len(self._text):
            stop = self._text.find("\n", self._at)
            stop = len(self._text) if stop < 0 else stop
            line, before, self._at = self._text[self._at : stop], self._at, min(stop + 1, len(self._text))
            if (line.lstrip("\t") if tabs else line) == end:
                if not raw:
                    if "\\\n" in self._text[begun:before]:
                        raise Unclear
                    inner = _Reader(self._text[begun:before] + '"', self._depth + 1, self.found)
                    inner._double(text=True)
                return
        raise Unclear

    # --- words ---------------------------------------------------------------------------------------

    def _value(self) -> str:
        """A word that may set a variable."""
        name = _ASSIGNED.match(self._text, self._at)
        if name is None:
            return self._word()
        if name[1] and re.search(r"[$`]", name[1]):
            raise Unclear
        self._at = name.end()
        if self._peek() == "(":
            self._list()
            return UNKNOWN + name[0]
        value = self._word(empty=True)
        return (UNKNOWN if not known(value) else "") + name[0] + text_of(value)

    def _list(self) -> None:
        """Values in brackets: they are no commands, but what runs in them is."""
        self._at += 1
        while (mark := self._peek()) != ")":
            if mark in ("", *";&|<>("):
                raise Unclear
            if mark in " \t\n":
                self._at += 1
            else:
                self._word()
        self._at += 1
        if self._peek() not in ("", *" \t\n;&|)"):
            raise Unclear

    def _word(self, empty: bool = False) -> str:
        """The next word, without its quotes."""
        said, live, begun = list[str](), False, self._at
        while self._at < len(self._text):
            mark = self._peek()
            if self._peek(2) in ("<(", ">("):
                self._at += 2
                self.commands(closing=True)
                live = True
            elif mark in " \t\n;&|<>()":
                break
            elif mark in "\\'\"$`":
                text, unsure = self._quoted(mark)
                said.append(text)
                live = live or unsure
            else:
                live = live or mark in "*?[{" or (mark == "~" and self._at == begun and self._peek(2)[1:] not in "/ ")
                said.append(mark)
                self._at += 1
        if self._at == begun and not empty:
            raise Unclear
        text = "".join(said)
        return UNKNOWN + text if live and text not in ("{}", "[", "[[", "{") else text

    def _quoted(self, mark: str) -> tuple[str, bool]:
        """What a quote, a backslash, a dollar or a backtick begins, and whether it is known only later."""
        if mark == "\\":
            said = self._peek(2)[1:]
            self._at += 2
            self.hidden = self.hidden or said in ("$", "`")
            return ("" if said == "\n" else said), False
        if mark == "'":
            return self._single(), False
        if mark == '"':
            self._at += 1
            return self._double()
        return self._backtick() if mark == "`" else self._dollar()

    def _single(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise Unclear
        said, self._at = self._text[self._at + 1 : end], end + 1
        self.hidden = self.hidden or "$" in said or "`" in said
        return said

    def _double(self, text: bool = False) -> tuple[str, bool]:
        """Up to the quote that closes; `text`: up to the end, as in lines of their own."""
        said, live = list[str](), False
        while self._at < len(self._text):
            mark = self._peek()
            if mark == '"' and (not text or self._at == len(self._text) - 1):
                self._at += 1
                return "".join(said), live
            if mark == "\\":
                second = self._peek(2)[1:]
                said.append("" if second == "\n" else second if second in ('"', "\\", "$", "`") else mark + second)
                self.hidden = self.hidden or second in ("$", "`")
                self._at += 2
            elif mark in "$`":
                inner, unsure = self._backtick() if mark == "`" else self._dollar(quoted=True)
                said.append(inner)
                live = live or unsure
            else:
                said.append(mark)
                self._at += 1
        raise Unclear

    def _dollar(self, quoted: bool = False) -> tuple[str, bool]:
        begun, mark = self._at, self._peek(2)[1:]
        if mark == "'" and not quoted:
            return self._escaped()
        if mark == '"' and not quoted:
            self._at += 2
            return self._double()
        if total := _SUM.match(self._text, self._at):
            if not _CALCULATION.fullmatch(total[1]) or re.search(r"\$\(|\w\s+\w", total[1]):
                raise Unclear
            self._at = total.end()
        elif mark == "(":
            self._at += 2
            self.commands(closing=True)
        elif mark == "{":
            self._braced()
        elif mark == "[":
            raise Unclear
        elif name := _NAME.match(self._text, self._at + 1):
            self._at = name.end()
        else:
            self._at += 1
            return "$", False
        return self._text[begun : self._at], True

    def _braced(self) -> None:
        """${…}, and what is run in it."""
        self._at += 2
        if re.compile(r"!|\w+(?:\[[^\]]*[$`]|.?@)").match(self._text, self._at) or self._depth >= DEEPEST:
            raise Unclear
        self._depth += 1
        while self._at < len(self._text):
            mark = self._peek()
            if mark == "}":
                self._at += 1
                self._depth -= 1
                return
            if mark in "\\'\"$`":
                self._quoted(mark)
            else:
                self._at += 1
        raise Unclear

    def _escaped(self) -> tuple[str, bool]:
        """$'…' without its quotes."""
        end = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL).match(self._text, self._at)
        if end is None:
            raise Unclear
        self._at = end.end()
        try:
            said = codecs.decode(end[1].encode("ascii", "backslashreplace"), "unicode_escape")
        except UnicodeDecodeError:
            return "", True
        self.hidden = self.hidden or "$" in said or "`" in said
        return said, not said.isprintable() or "\\" in said

    def _backtick(self) -> tuple[str, bool]:
        """A command in backticks is read after its backslashes are gone."""
        end = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL).match(self._text, self._at)
        if end is None or self._depth >= DEEPEST:
            raise Unclear
        self._at = end.end()
        inner = _Reader(re.sub(r"\\([$`\\\"])", r"\1", end[1]), self._depth + 1, self.found)
        inner.commands()
        self.hidden = self.hidden or inner.hidden
        return end[0], True
