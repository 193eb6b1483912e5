"""The parts of a message's content as values: text, images and reasoning.

A message stores its content as text or as a list of JSON objects, which this module converts to values. Objects of an
unknown type are skipped by readers and kept by the store.

Two types are plain text for a model: a `note`, which users are not shown (such as the date), and a `cut`, which states
why a reply ended early. A text with `notice` was written by a program and not by a user. A text with `quoted` has `> `
before each line for a model, so that it cannot imitate a note. A note with `turn` holds for one turn only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import types


class Text(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A text."""

    text: str


class Image(msgspec.Struct, frozen=True, tag_field="type", tag="image", omit_defaults=True):
    """An image: its bytes in base64, its URL, or the digest of an attachment."""

    media_type: str = "image/png"
    data: str = ""
    url: str = ""
    blob: str = ""


class Reasoning(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning", omit_defaults=True):
    """The reasoning of a model. `signature` and `hidden` are opaque, and sent only to the provider they came from."""

    text: str = ""
    signature: str = ""
    hidden: str = ""
    provider: str = ""


Part = Text | Image | Reasoning

_KINDS: dict[Any, type[Part]] = {"text": Text, "image": Image, "reasoning": Reasoning}
_TEXTS = ("note", "cut")

ERROR = "Error: "
"""The prefix of a tool result that is only an error message."""

WELL = "well"
"""The type of the part that marks a successful result which begins with that prefix. It is not shown."""

COMMAND = "shell"
"""The tool whose result has the exit code of a command in its last line."""
_ENDED = re.compile(r"\[(?:exit code (-?\d+)|killed\b[^\n]*|It was (?:killed|stopped)\b[^\n]*)\]\Z")
_NONE = re.compile(r"\[No result: [^\n]*\]")
"""The placeholder of a missing result."""


def note(text: str) -> dict[str, Any]:
    """Return a part for the model that users are not shown."""
    return {"type": "note", "text": text}


def turn_note(text: str) -> dict[str, Any]:
    """Return a note that holds for one turn only, such as the date."""
    return {**note(text), "turn": True}


def without_turn_notes(content: types.Content) -> types.Content:
    """Return the content of a message that is sent again in another turn."""
    if isinstance(content, str):
        return content
    parts = [part for part in content if not part.get("turn")]
    is_plain = len(parts) == 1 and parts[0].keys() == {"type", "text"} and parts[0]["type"] == "text"
    return text(parts) if is_plain else parts


def notice(text: str, kind: str) -> dict[str, Any]:
    """Return a text part that a program wrote, with the kind of the notice."""
    return {"type": "text", "text": text, "notice": kind}


def quoted(text: str) -> dict[str, Any]:
    """Return a text part whose lines are marked for the model as those of a user."""
    return {"type": "text", "text": text, "quoted": True}


def notice_kind(content: types.Content) -> str:
    """Return the kind of a notice; empty for a message of a user."""
    kinds = (part.get("notice") for part in content) if isinstance(content, list) else ()
    return next((kind for kind in kinds if isinstance(kind, str)), "")


def cut(why: str) -> dict[str, Any]:
    """Return the part that marks an unfinished reply."""
    return {"type": "cut", "text": f"\n[{why}]"}


def is_cut(content: types.Content) -> bool:
    """Return whether a reply is marked as unfinished."""
    return isinstance(content, list) and bool(content) and content[-1].get("type") == "cut"


def parse(content: types.Content) -> tuple[Part, ...]:
    """Return the known parts of a content, as a model sees them."""
    if isinstance(content, str):
        return (Text(content),) if content else ()
    return tuple(part for part in map(_part, map(_quote, content)) if part is not None)


def text(content: types.Content) -> str:
    """Return the text of a content, without notes and reasoning."""
    if isinstance(content, str):
        return content
    shown = map(_part, (part for part in content if part.get("type") != "note"))
    return "".join(part.text for part in shown if isinstance(part, Text))


def mark_success(result: types.Content) -> types.Content:
    """Mark a result as successful, because its text looks like an error message."""
    given = [{"type": "text", "text": result}] if isinstance(result, str) else result
    return [*given, {"type": WELL}]


def is_success(tool: str, result: types.Content) -> bool:
    """Return whether the stored result of a tool call is a success."""
    if isinstance(result, list) and result and result[-1].get("type") == WELL:
        return True
    output = text(result)
    if tool == COMMAND and (ended := _ENDED.search(output)):
        return ended[1] == "0"  # The output of a command may begin with any text.
    return not output.startswith(ERROR) and _NONE.fullmatch(output) is None


def encode(parts: Sequence[Part]) -> types.Content:
    """Return parts as a message stores them: a string if all are text."""
    if all(isinstance(part, Text) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, Text))
    return [msgspec.to_builtins(part) for part in parts]


def _quote(given: dict[str, Any]) -> dict[str, Any]:
    if not (given.get("quoted") and isinstance(text := given.get("text"), str)):
        return given
    return {**given, "text": "".join(f"> {line}\n" for line in text.splitlines())}


def _part(given: dict[str, Any]) -> Part | None:
    kind = given.get("type")
    if kind in _TEXTS:
        kind, given = "text", {"type": "text", "text": given.get("text")}
    known = _KINDS.get(kind) if isinstance(kind, str) else None
    try:
        return msgspec.convert(given, known) if known else None
    except msgspec.ValidationError:
        return None
