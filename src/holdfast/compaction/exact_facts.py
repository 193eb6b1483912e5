"""What in a sentence would be missed word for word: files, addresses, numbers with their unit, names. Pure."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from holdfast.compaction import time_slices

Kind = Literal["url", "file", "id", "number", "name"]

_ENDINGS = (
    "py|pyi|md|rst|txt|toml|ya?ml|json|jsonl|csv|tsv|sql|sh|js|ts|tsx|jsx|css|html?|xml|rs|go|java|kt|c|h|cc|cpp|hpp"
    "|rb|php|swift|lock|cfg|ini|conf|env|log|db|sqlite|pdf|docx?|xlsx?|pptx?|odt|png|jpe?g|svg|gif|zip|tar|gz|tex|ipynb"
)
_FILE = (
    r"(?<![\w/:])(?:~|\.{1,2})?/[\w.@+\-]{1,60}(?:/[\w.@+\-]{1,60}){0,20}/?|\b[A-Za-z]:\\[\w\\.\-]{2,120}"
    rf"|(?<![\w/:])(?:[\w.@+\-]{{1,60}}/){{1,20}}[\w.@+\-]{{1,60}}|\b[\w\-]{{1,60}}\.(?:{_ENDINGS})\b"
)
_FILES = re.compile(_FILE)
_ADDRESS = re.compile(r"\b[a-z]{2,8}://\S+")
_MAY_NAME_FILES = re.compile(r"[/\\]|\w\.[a-z]")
# Runs are bounded: a line of nothing but slashes or digits is no work.
_FACT = re.compile(
    r"(?P<url>\bhttps?://[^\s<>\"')\]]{3,200}|\b[\w.+\-]{1,60}@[\w\-]{1,60}\.[\w.\-]{2,40})"
    rf"|(?P<file>{_FILE})"
    r"|(?P<id>\b[A-Z][A-Z0-9]{1,9}-\d{1,8}\b|\bv\d{1,4}(?:\.\d{1,5}){1,3}\b|\b\d{1,4}\.\d{1,4}\.\d{1,5}(?:\.\d{1,4})?\b"
    r"|\b(?:[A-Z]\w{1,40})?(?:Error|Exception)\b|\bE[A-Z]{3,12}\b|\bERR_\w{2,40}|\b[a-z]{1,30}(?:_[a-z0-9]{1,30}){1,6}\b"
    r"|\b(?=[\w\-]{0,40}\d)(?=[\w\-]{0,40}[A-Za-z])\w[\w\-]{3,40}\b|\+\d[\d \-]{6,18}\d|(?<!\w)[#@]\w{2,40})"
    r"|(?P<number>[€$£¥]\s?\d[\d.,]{0,15}\b(?:\s?[kKmM]\b)?"
    r"|\b\d{1,15}(?:[.,:/\-]\d{1,9}){0,4}(?:\s?(?:%|°[CF]?|[€$£¥]|[^\W\d_]{1,14}))?)"
    r"|(?P<name>(?<=[a-z,;:(] )[A-Z][\w'’\-]{1,30}(?:\s[A-Z][\w'’\-]{1,30}){0,3})"
)
_ENDING = re.compile(r"\.[A-Za-z]\w{0,7}$")
_COMMON = """
I I'm I'll I've I'd OK Yes No The This That It January February March April May June July August September October
November December Monday Tuesday Wednesday Thursday Friday Saturday Sunday
"""
_NO_NAMES = frozenset(_COMMON.split())
# Words beside a number that are neither its unit nor its label.
_UNTELLING = """
a an and as at but by came each else every for from had has have if in into is it its more no not now of off on or out
over per plus so than that the then there they this till to under until up was we were when which while who will with
without you about after all along around been before between both i me my only our st nd rd th und oder der die das
mit für von bis et ou de la le les y o el los en com para
"""
_NO_UNITS = frozenset(_UNTELLING.split())
_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)")
_DIGITS = re.compile(r"[\d.,:/\-]*\d")
_LABEL = re.compile(r"([^\W\d_][\w\-]{1,20})\s?[:=]?\s$")
_WEIGHTS = {"url": 1.0, "file": 0.9, "id": 1.0, "number": 0.8, "name": 0.6}


class Fact(msgspec.Struct, frozen=True):
    """A stretch of a sentence, as it stands there."""

    kind: Kind
    text: str

    @property
    def weight(self) -> float:
        return _WEIGHTS[self.kind]


def found(text: str) -> tuple[Fact, ...]:
    """The facts of one line, in order, each once."""
    time_slices.breathe()
    facts = (_fact(match, text) for match in _FACT.finditer(text))
    return tuple(dict.fromkeys(fact for fact in facts if fact is not None))


def files(text: str) -> list[str]:
    """The files of one line."""
    time_slices.breathe()
    if not _MAY_NAME_FILES.search(text):
        return []
    named = (match[0].rstrip(".,:;/-") for match in _FILES.finditer(_ADDRESS.sub(" ", text)))
    return [file for file in named if _is_file(file)]


def _fact(match: re.Match[str], line: str) -> Fact | None:
    kind, text = match.lastgroup, match[0].rstrip(".,:;/-")
    if kind == "name":
        return None if text in _NO_NAMES else Fact("name", text)
    if kind == "number":
        return _number(text, line[max(0, match.start() - 24) : match.start()])
    if kind == "file":
        return Fact("file", text) if _is_file(text) else None
    if _ORDINAL.fullmatch(text):
        return None
    return Fact("url" if kind == "url" else "id", text) if len(text) > 1 else None


def _number(text: str, before: str) -> Fact | None:
    """A number with its unit, else with the word before it; a bare one only where it is long enough to be found."""
    number = _DIGITS.match(text)
    unit = text[number.end() :].strip() if number else text
    if unit and unit.casefold() not in _NO_UNITS:
        return Fact("number", text)
    digits = number[0] if number else text
    label = _LABEL.search(before)
    if label and label[1].casefold() not in _NO_UNITS:
        return Fact("number", before[label.start() :] + digits)
    return Fact("number", digits) if len(digits) > 2 else None


def _is_file(text: str) -> bool:
    """A path, not a fraction, a date or two words that share a slash."""
    if not any(map(str.isalpha, text)) or len(text) < 3:
        return False
    return text[0] in "~/." or text.count("/") > 1 or "\\" in text or bool(_ENDING.search(text))
