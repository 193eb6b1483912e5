"""What a message is made of, as values: text, images, reasoning. Calls and results are messages' own fields.

A message stores its content as text or as a list of JSON objects. Here those become values a model adapter
can match on. What this version does not know is skipped by readers and kept by the store.

Two kinds of object are only ever text to a model: a `note`, which people are not shown (what day it is),
and a `cut`, which says that and why a reply ended where it does. A text with `notice` is what a program tells.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import types


class Text(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Something said."""

    text: str


class Image(msgspec.Struct, frozen=True, tag_field="type", tag="image", omit_defaults=True):
    """A picture: its bytes in base64, or the address or the attachment where they are."""

    media_type: str = "image/png"
    data: str = ""
    url: str = ""
    blob: str = ""


class Reasoning(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning", omit_defaults=True):
    """What a model thought before it spoke. `signature` and `hidden` are its provider's, and go back to it only."""

    text: str = ""
    signature: str = ""
    hidden: str = ""
    provider: str = ""


Part = Text | Image | Reasoning

_KINDS: dict[Any, type[Part]] = {"text": Text, "image": Image, "reasoning": Reasoning}
_TEXTS = ("note", "cut")

ERROR = "Error: "
"""What the result of a call begins with where it is only a sentence that says why there is none."""

WELL = "well"
"""The kind of the mark behind a result whose words begin like that all the same; nobody is shown it."""

COMMAND = "shell"
"""The tool whose result says in its last line how a command ended."""
_ENDED = re.compile(r"\[(?:exit code (-?\d+)|killed\b[^\n]*|It was (?:killed|stopped)\b[^\n]*)\]\Z")
_NONE = re.compile(r"\[No result: [^\n]*\]")
"""What stands in the place of a result that never came."""


def note(text: str) -> dict[str, Any]:
    """Something the model is told with a message, and people are not shown."""
    return {"type": "note", "text": text}


def notice(text: str, kind: str) -> dict[str, Any]:
    """Something a program tells, in the place of a person's words: a text with the kind of notice it is."""
    return {"type": "text", "text": text, "notice": kind}


def notice_kind(content: types.Content) -> str:
    """The kind of notice a content is; empty where a person says it."""
    kinds = (part.get("notice") for part in content) if isinstance(content, list) else ()
    return next((kind for kind in kinds if isinstance(kind, str)), "")


def cut(why: str) -> dict[str, Any]:
    """The mark at the end of a reply that was not finished."""
    return {"type": "cut", "text": f"\n[{why}]"}


def is_cut(content: types.Content) -> bool:
    """Whether a reply ends with such a mark."""
    return isinstance(content, list) and bool(content) and content[-1].get("type") == "cut"


def parse(content: types.Content) -> tuple[Part, ...]:
    """The parts of a content that this version knows, as a model is to see them."""
    if isinstance(content, str):
        return (Text(content),) if content else ()
    return tuple(part for part in map(_part, content) if part is not None)


def text(content: types.Content) -> str:
    """What is said in a content, without notes and what was thought."""
    if isinstance(content, str):
        return content
    said = [part for part in content if part.get("type") != "note"]
    return "".join(part.text for part in parse(said) if isinstance(part, Text))


def mark_success(result: types.Content) -> types.Content:
    """A result, marked as one: its words could be those that stand in the place of one."""
    given = [{"type": "text", "text": result}] if isinstance(result, str) else result
    return [*given, {"type": WELL}]


def is_success(tool: str, result: types.Content) -> bool:
    """Whether what the log has as the result of a call of this tool is one, and says nothing else."""
    if isinstance(result, list) and result and result[-1].get("type") == WELL:
        return True
    said = text(result)
    if tool == COMMAND and (ended := _ENDED.search(said)):
        return ended[1] == "0"  # Whatever it wrote before that: it may begin with any word.
    return not said.startswith(ERROR) and _NONE.fullmatch(said) is None


def encode(parts: Sequence[Part]) -> types.Content:
    """Parts as a message stores them: plain text, where it is only that."""
    if all(isinstance(part, Text) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, Text))
    return [msgspec.to_builtins(part) for part in parts]


def _part(given: dict[str, Any]) -> Part | None:
    kind = given.get("type")
    if kind in _TEXTS:
        kind, given = "text", {"type": "text", "text": given.get("text")}
    known = _KINDS.get(kind) if isinstance(kind, str) else None
    try:
        return msgspec.convert(given, known) if known else None
    except msgspec.ValidationError:
        return None
