"""The stem of a word, after Porter (1980, with his own later changes): what SQLite's index does to words, for one
that does not. Pure.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

# Shorter words have no endings; longer ones are no words.
SHORTEST, LONGEST = 3, 64

# The longest ending that fits is the only one that is tried; it goes when enough of the word is left.
_SECOND = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "logi": "log", "bli": "ble",
    "alli": "al", "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate",
    "alism": "al", "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble",
}  # fmt: skip
_THIRD = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_FOURTH = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "sion", "tion", "ou", "ism",
    "ate", "iti", "ous", "ive", "ize",
)  # fmt: skip


@functools.lru_cache(maxsize=50_000)
def stem(word: str) -> str:
    """Of a word in small letters; one with anything but Latin letters in it is left as it is."""
    if not SHORTEST <= len(word) <= LONGEST or not word.isascii() or not word.isalpha():
        return word
    word = _past(_plural(word))
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = f"{word[:-1]}i"
    word = _replaced(_replaced(word, _SECOND), _THIRD)
    return _last(_without(word))


def _shape(word: str) -> str:
    """Each letter as a vowel or a consonant; a y is a vowel behind a consonant."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    """How often vowels are followed by consonants."""
    return len(re.findall("v+c+", _shape(word)))


def _has_vowel(word: str) -> bool:
    return "v" in _shape(word)


def _short(word: str) -> bool:
    """Ends as `hop` does, but not with w, x or y."""
    return _shape(word).endswith("cvc") and word[-1] not in "wxy"


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")) and word not in ("sses", "ies"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word.endswith("eed") and word != "eed":
        return word[:-1] if _measure(word[:-3]) else word
    for ending in ("ed", "ing"):
        if word.endswith(ending) and _has_vowel(word[: -len(ending)]):
            return _whole(word[: -len(ending)])
    return word


def _whole(word: str) -> str:
    """What is left of a past or an -ing, as it would be written."""
    if word.endswith(("at", "bl", "iz")):
        return f"{word}e"
    if len(word) > 1 and word[-1] == word[-2] and _shape(word)[-1] == "c" and word[-1] not in "lsz":
        return word[:-1]
    return f"{word}e" if _measure(word) == 1 and _short(word) else word


def _longest(word: str, endings: Iterable[str]) -> str:
    return max((ending for ending in endings if word.endswith(ending)), key=len, default="")


def _replaced(word: str, endings: dict[str, str]) -> str:
    ending = _longest(word, endings)
    if ending and _measure(word[: -len(ending)]):
        return word[: -len(ending)] + endings[ending]
    return word


def _without(word: str) -> str:
    ending = _longest(word, _FOURTH)
    # Of -sion and -tion the first letter stays.
    cut = len(ending) - (ending in ("sion", "tion"))
    return word[:-cut] if ending and _measure(word[:-cut]) > 1 else word


def _last(word: str) -> str:
    if word.endswith("e"):
        left = word[:-1]
        if _measure(left) > 1 or (_measure(left) == 1 and not _short(left)):
            word = left
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word
