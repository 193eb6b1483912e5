"""Estimate the number of tokens of a text without the tables of a tokenizer, and count requests with it.

A tokenizer first splits a text into pieces (a word with the space before it, up to three digits, a run of punctuation)
and then splits pieces that its tables do not contain. The first step is done here as tokenizers do it, on a text in
which each character is replaced by its class. The cost of a piece is an average per class, measured against the o200k
tables on prose of thirty languages, code, logs and data. The usage that a provider reports corrects the rest.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from holdfast import content_parts, types

# Tokens of the structure of a request: roles, separators, names, brackets.
PER_MESSAGE = 4
PER_CALL = 8
PER_TOOL = 8
# Providers count 800 to 1,600 tokens for an image of a usual size.
PER_IMAGE = 1_200
# Encrypted reasoning takes about five characters per token.
HIDDEN_PER_TOKEN = 5

# The classes of scripts, by ranges of code points. Scripts with similar costs share a class.
_SCRIPTS = (
    (0x0370, 0x03FF, "g"),  # Greek
    (0x0400, 0x052F, "c"),  # Cyrillic
    (0x0590, 0x05FF, "h"),  # Hebrew
    (0x0600, 0x07FF, "r"),  # Arabic
    (0x0900, 0x097F, "d"),  # Devanagari
    (0x0980, 0x0DFF, "i"),  # the other scripts of India
    (0x0E00, 0x0EFF, "t"),  # Thai, Lao
    (0x1000, 0x109F, "t"),  # Burmese
    (0x1100, 0x11FF, "o"),  # Hangul
    (0x1780, 0x17FF, "t"),  # Khmer
    (0x1F00, 0x1FFF, "g"),
    (0x3040, 0x30FF, "k"),
    (0x3400, 0x9FFF, "z"),
    (0xAC00, 0xD7A3, "o"),
    (0xF900, 0xFAFF, "z"),
    (0xFB50, 0xFDFF, "r"),
    (0xFE70, 0xFEFE, "r"),
)
# The number of letters that are one token, and the cost of each further letter.
_RUNS = {
    "g": (3.0, 0.40),
    "c": (3.0, 0.21),
    "h": (2.0, 0.39),
    "r": (3.0, 0.23),
    "d": (2.2, 0.28),
    "i": (2.0, 0.32),
    "t": (1.5, 0.34),
    "o": (1.2, 0.45),
    "x": (1.0, 0.60),
}
# Characters with a cost of their own: emoji, their joiners and modifiers, rare ideographs.
_EACH = {"m": 1.6, "v": 0.8, "y": 3.5, "z": 0.85, "k": 0.68}
_LEADS = " ./'ps"
# A longer text is estimated by samples, so that any text takes a few milliseconds at most.
_MAX_WHOLE = 131_072
_SAMPLES, _SAMPLE_LENGTH = 32, 2_048

# Repetitions are bounded, so that pieces stay short and the cache of costs is effective.
_PIECE = re.compile(
    r"[ ./'ps]?(?:[ALE]{1,20}+[ale]{0,30}+|[ale]{1,30}+)(?:'a{1,2}(?![ale]))?"
    r"|0{1,3}+"
    r"|[ .p]?(?:[cghrditox]{1,30}+|[kz]{1,24}+)"
    r"| ?[./'ps]{1,16}+[\n/]{0,16}+"
    r"| {0,80}\n{1,80}"
    r"| {1,80}(?= )"
    r"|[mv]{1,16}+|y{1,16}+| "
)


class _Classes(dict[int, str]):
    """A lazy map from characters to their classes, for str.translate."""

    def __missing__(self, point: int) -> str:
        kind = self[point] = _class(chr(point))
        return kind


_classes = _Classes()


def _class(character: str) -> str:
    if character in "\r\n":
        return "\n"
    if character.isspace():
        return " "
    if not character.isascii():
        return _wide_class(character, ord(character))
    if character.isalnum():
        return "0" if character.isdigit() else "A" if character.isupper() else "a"
    return character if character in "'/" else "."


def _wide_class(character: str, point: int) -> str:
    mark = unicodedata.category(character)[0] == "M"
    if character.isalpha() or mark:
        script = next((kind for first, last, kind in _SCRIPTS if first <= point <= last), "")
        if script:
            return script
        # Words with letters from outside Western Europe are split more often.
        plain, capital = ("e", "E") if 0x100 <= point < 0x250 else ("l", "L")
        if point < 0x250 or 0x1E00 <= point < 0x1F00:
            return capital if character.isupper() else plain
        if not mark:
            return "y" if point >= 0x10000 else "x"
    if mark or point == 0x200D:
        return "v"
    if 0x2600 <= point < 0x2800 or 0x1F000 <= point < 0x20000:
        return "m"
    return "p" if point < 0x2070 or 0x3000 <= point < 0x3040 or 0xFF00 <= point < 0xFFF0 else "s"


@lru_cache(maxsize=8192)
def _cost(piece: str) -> float:
    lead = piece[0] if piece[0] in _LEADS and len(piece) > 1 else ""
    word = piece[len(lead) :]
    first = word[0]
    if first in "AaLlEe":
        return _word_cost(lead, word)
    if first in _RUNS:
        whole, each = _RUNS[first]
        return 1 + each * max(0.0, len(word) - whole)
    if first in _EACH:
        return 0.2 + sum(map(_EACH.__getitem__, word))
    return 1 + 0.2 * max(0, len(piece) - 2) if first in _LEADS[1:] else 1.0


def _word_cost(lead: str, word: str) -> float:
    letters = word.partition("'")[0]
    length = len(letters)
    capitals = length - len(letters.lstrip("ALE"))
    return _accents(letters) + (
        _spaced(length, capitals) if lead == " " else _signed(length, capitals) if lead else _joined(length, capitals)
    )


def _accents(letters: str) -> float:
    western = letters.count("l") + letters.count("L")
    other = letters.count("e") + letters.count("E")
    if len(letters) <= 4:
        return 0.12 * western + 0.25 * other
    return 0.35 * min(western, 3) + 0.9 * min(other, 2)


def _spaced(length: int, capitals: int) -> float:
    """Return the cost of a word after a space: most are one token."""
    if capitals == length:
        return 1 + 0.07 * max(0, length - 2)
    if capitals > 1:
        return 1 + 0.2 * (length - 2)
    return 1 + 0.085 * max(0, length - 4) + (0.15 if capitals and length > 3 else 0)


def _signed(length: int, capitals: int) -> float:
    """Return the cost of a word after punctuation, as in paths and code."""
    if capitals == length:
        return 1.1 + 0.07 * length
    if capitals > 1:
        return 1.1 + 0.47 * (length - 1)
    return 1.5 if capitals else 1.15 + 0.07 * max(0, length - 4)


def _joined(length: int, capitals: int) -> float:
    """Return the cost of a word after a digit or another word, as in identifiers."""
    if capitals == length:
        return 1 + 0.45 * max(0, length - 2)
    if capitals > 1:
        return 1.1 + 0.47 * (length - 1)
    if capitals:
        return 1.4 if length < 4 else 1.2
    return 1 + 0.1 * max(0, length - 2)


def estimate(text: str) -> int:
    """Estimate the tokens of a text: at least one, unless it is empty."""
    if len(text) <= _MAX_WHOLE:
        return math.ceil(_weigh(text))
    step = len(text) / _SAMPLES
    samples = [text[int(i * step) : int(i * step) + _SAMPLE_LENGTH] for i in range(_SAMPLES)]
    return math.ceil(sum(map(_weigh, samples)) * len(text) / sum(map(len, samples)))


def _weigh(text: str) -> float:
    return sum(map(_cost, _PIECE.findall(text.translate(_classes))))


class Meter:
    """Counts the tokens of requests to one model, corrected by the usage that its provider reports.

    The size of a message is cached in the message, so counting a context costs only what is new. Thread-safe.
    """

    MIN_FACTOR, MAX_FACTOR = 0.5, 3.0
    LEARNING_RATE = 0.3
    """The share of the difference by which one report moves the factor, so that a wrong report does little harm."""
    MIN_TOKENS = 200
    """Smaller requests teach nothing: the provider's own overhead dominates their usage."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._weighed: tuple[tuple[types.ToolSpec, ...], int] = ((), 0)

    def count(self, system: str, tools: Sequence[types.ToolSpec], messages: Sequence[types.Message]) -> int:
        """Return the tokens of a request, as the provider is expected to count them."""
        fixed = _text_size(system) + (PER_MESSAGE if system else 0) + self._size_of_tools(tuple(tools))
        return math.ceil(self.factor * (fixed + sum(map(size, messages))))

    def of(self, message: types.Message) -> int:
        """Return the tokens of one message, as the provider is expected to count them."""
        return math.ceil(self.factor * size(message))

    def correct(self, estimated: int, reported: int) -> None:
        """Learn from the reported tokens of a request for which `count` returned `estimated`."""
        if estimated < self.MIN_TOKENS or reported <= 0:
            return
        right = min(max(self.factor * reported / estimated, self.MIN_FACTOR), self.MAX_FACTOR)
        self.factor += self.LEARNING_RATE * (right - self.factor)

    def _size_of_tools(self, tools: tuple[types.ToolSpec, ...]) -> int:
        if not tools:
            return 0  # Without replacing the cached tools.
        # One attribute, so that another thread sees tools and size that belong together.
        known, weight = self._weighed
        if tools != known:
            weight = sum(map(_tool_size, tools))
            self._weighed = (tools, weight)
        return weight


_SIZE = "tokens"


def size(message: types.Message) -> int:
    """Return the estimated tokens of one message, without a provider's correction."""
    kept: int | None = message.__dict__.get(_SIZE)
    if kept is None:
        kept = message.__dict__[_SIZE] = _message_size(message)
    return kept


def _message_size(message: types.Message) -> int:
    parts = sum(map(_part_size, content_parts.parse(message.content)))
    calls = sum(PER_CALL + estimate(call.name) + _arguments_size(call) for call in message.tool_calls)
    return PER_MESSAGE + parts + calls


def _part_size(part: content_parts.Part) -> int:
    match part:
        case content_parts.Text(text):
            return estimate(text)
        case content_parts.Image():
            return PER_IMAGE
        case content_parts.Reasoning(text, _, hidden):
            return estimate(text) + len(hidden) // HIDDEN_PER_TOKEN


def _arguments_size(call: types.ToolCall) -> int:
    arguments = call.arguments
    return estimate(arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode())


def _tool_size(tool: types.ToolSpec) -> int:
    schema = msgspec.json.encode(tool.parameters).decode()
    return PER_TOOL + estimate(tool.name) + estimate(tool.description) + estimate(schema)


_text_size = lru_cache(maxsize=64)(estimate)
