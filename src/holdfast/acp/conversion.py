"""Between the protocol's values and ours, both ways. Pure.

What a person says in an editor becomes text and pictures: a file that comes along is text between fences, which nothing
in it can close. What tools do becomes kinds, titles and content that an editor can draw.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from acp import schema

from holdfast import errors, events, types
from holdfast.model import surrogates
from holdfast.rpc import frames
from holdfast.tools.files import diff, images

MOST, LARGEST = 8, 5_000_000
"""Pictures of one prompt; bytes of one of them."""
TITLE = 160
"""Characters of what a tool call is called."""
DEEP = 100
"""Arguments are told so deep and no deeper: many readers of JSON give up at 128, and a frame is around them."""

Block: TypeAlias = (
    schema.TextContentBlock
    | schema.ImageContentBlock
    | schema.AudioContentBlock
    | schema.ResourceContentBlock
    | schema.EmbeddedResourceContentBlock
)
Kind: TypeAlias = Literal[
    "read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"
]
Stop: TypeAlias = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]

_KINDS: dict[str, Kind] = {
    "read_file": "read",
    "read_output": "read",
    "read_process": "read",
    "list_processes": "read",
    "recall": "read",
    "write_file": "edit",
    "edit_file": "edit",
    "find_files": "search",
    "search_files": "search",
    "search_conversation": "search",
    "shell": "execute",
    "start_process": "execute",
    "wait_process": "execute",
    "write_process": "execute",
    "kill_process": "execute",
    "memory": "think",
}
_VERBS = {
    "read_file": "Read",
    "write_file": "Write",
    "edit_file": "Edit",
    "find_files": "Find",
    "search_files": "Search",
}
_EMBEDDED = re.compile(r"\n(`{3,})\n(.*)\n\1\n\n", re.DOTALL)
"""A file that came along, behind its address, as it is stored."""
_TOLD = ("path", "pattern", "query", "folder", "name", "id", "text")


# --- what a person says --------------------------------------------------------------------------------


class Picture(NamedTuple):
    """One that holds together."""

    media_type: str
    data: bytes


class Words(NamedTuple):
    """Something to read; `source` where it is a file or the like that came along, and not what was typed."""

    text: str
    source: str = ""
    name: str = ""


class Said(NamedTuple):
    """A prompt, in its order."""

    pieces: tuple[Words | Picture, ...]

    @property
    def text(self) -> str:
        """What was typed, and the names of what came along."""
        text = ""
        for each in self.pieces:
            if isinstance(each, Words):
                word = f"@{each.name}" if each.source else each.text
                apart = not text or not word or text[-1].isspace() or word[0].isspace()
                text += word if apart else f" {word}"
        return text.strip()

    @property
    def typed(self) -> str:
        """What was typed, as it was."""
        return "".join(each.text for each in self.pieces if isinstance(each, Words) and not each.source)

    @property
    def unescaped(self) -> Said:
        """Without the stroke it begins with: whoever types two means one."""
        kept = list(self.pieces)
        for place, piece in enumerate(kept):
            if isinstance(piece, Words) and piece.text.strip():
                kept[place] = piece._replace(text=piece.text.replace("/", "", 1))
                break
        return Said(tuple(kept))

    @property
    def is_plain(self) -> bool:
        """Whether it is nothing but typed words."""
        return all(isinstance(each, Words) and not each.source for each in self.pieces)


def said(blocks: Sequence[Block]) -> Said:
    """A prompt as it came; RpcRefused where there is nothing in it, or something that cannot be read."""
    pieces = tuple(_piece(number, block) for number, block in enumerate(blocks, 1))
    if sum(isinstance(piece, Picture) for piece in pieces) > MOST:
        raise _refused(f"A prompt has at most {MOST} images.")
    if not any(isinstance(piece, Picture) or piece.source or piece.text.strip() for piece in pieces):
        raise _refused("A prompt has words, an image or a resource.")
    return Said(pieces)


def _piece(number: int, block: Block) -> Words | Picture:
    match block:
        case schema.TextContentBlock():
            return Words(block.text)
        case schema.ImageContentBlock():
            return _picture(number, block.data)
        case schema.ResourceContentBlock():
            return Words(f"[{block.name}]({block.uri})", block.uri, block.name)
        case schema.EmbeddedResourceContentBlock():
            return _resource(number, block.resource)
        case _:
            raise _refused(f"Block {number} is audio, which cannot be heard here.")


def _resource(number: int, given: schema.TextResourceContents | schema.BlobResourceContents) -> Words | Picture:
    name = given.uri.rstrip("/").rpartition("/")[2] or given.uri
    if isinstance(given, schema.TextResourceContents):
        return Words(f"\n\n{given.uri}\n{fenced(given.text)}\n\n", given.uri, name)
    if (given.mime_type or "").startswith("image/"):
        return _picture(number, given.blob)
    return Words(f"\n\n[{given.uri} came along. It is no text, and cannot be read.]\n\n", given.uri, name)


def _picture(number: int, encoded: str) -> Picture:
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise _refused(f"Block {number} is not base64.") from None
    if len(data) > LARGEST:
        raise _refused(f"Block {number} has more than {LARGEST:,} bytes.")
    found = images.read(data)
    if found is None:
        raise _refused(f"Block {number} is no PNG, JPEG, GIF or WebP, or a broken one.")
    return Picture(found.media_type, data)


def part(words: Words) -> dict[str, Any]:
    """Words as a message stores them. What came along is known by its address when it is shown again."""
    plain: dict[str, Any] = {"type": "text", "text": words.text}
    return plain | ({"resource": {"uri": words.source, "name": words.name}} if words.source else {})


def _refused(why: str) -> errors.RpcRefused:
    return errors.RpcRefused(frames.PARAMS, why)


# --- what a person is shown ----------------------------------------------------------------------------


def block(text: str) -> schema.TextContentBlock:
    return schema.TextContentBlock(type="text", text=surrogates.mended(text))


def blocks(content: types.Content) -> list[Block]:
    """A message of a person, but for its pictures."""
    if isinstance(content, str):
        return [block(content)] if content else []
    return [made for each in content if (made := _block(each)) is not None]


def _block(given: Mapping[str, Any]) -> Block | None:
    match given:
        case {"type": "text", "text": str(text), "resource": {"uri": str(uri), "name": str(name)}}:
            whole = _EMBEDDED.fullmatch(text.removeprefix(f"\n\n{uri}"))
            if whole is None:
                return schema.ResourceContentBlock(type="resource_link", uri=uri, name=name)
            came = schema.TextResourceContents(uri=uri, text=whole[2])
            return schema.EmbeddedResourceContentBlock(type="resource", resource=came)
        case {"type": "text" | "cut", "text": str(text)} if text:
            return block(text)
        case _:
            return None


def fenced(text: str) -> str:
    """Text that is shown as it is: between fences longer than any it has itself."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text}\n{fence}"


def answer(text: str) -> str:
    """What a command has to say: its lines stand below each other as they are meant to."""
    return fenced(text.rstrip()) if "\n" in text.strip() else text.strip()


# --- tools ---------------------------------------------------------------------------------------------


def kind(tool: str) -> Kind:
    return _KINDS.get(tool, "other")


def arguments(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """What a tool was called with, as it can be told; nothing where that cannot be read."""
    try:
        read = json.loads(given or "{}") if isinstance(given, str) else dict(given)
    except (ValueError, RecursionError):
        return {}
    told = _tellable(read, DEEP)
    return told if isinstance(told, dict) else {}


def _tellable(value: Any, left: int) -> Any:
    """The same without half characters, which no frame can hold, and without what lies too deep."""
    match value:
        case dict() | list() if not left:
            return "…"
        case dict():
            return {surrogates.mended(key): _tellable(each, left - 1) for key, each in value.items()}
        case list():
            return [_tellable(each, left - 1) for each in value]
        case _:
            return surrogates.mended(value)


def title(tool: str, given: Mapping[str, Any]) -> str:
    """A call on one line."""
    if isinstance(line := given.get("command"), str) and tool in ("shell", "start_process"):
        return _short(line)
    about = next((str(given[key]) for key in _TOLD if isinstance(given.get(key), str | int)), "")
    return _short(f"{_VERBS.get(tool, tool)} {about}")


def result(text: str) -> list[schema.ContentToolCallContent]:
    """What came of a call, as text. It is no Markdown: an editor might fetch a picture that a file or server names."""
    if not text.strip():
        return []
    return [schema.ContentToolCallContent(type="content", content=block(fenced(text.rstrip())))]


def _short(words: str) -> str:
    line = diff.escape_hidden(" ".join(words.split()))
    return line if len(line) <= TITLE else f"{line[: TITLE - 1]}…"


# --- permissions ---------------------------------------------------------------------------------------


def choices(asked: events.ApprovalAsked) -> list[schema.PermissionOption]:
    """What can be answered to a question. What cannot be remembered is not offered."""
    made = [schema.PermissionOption(option_id="once", name="Allow once", kind="allow_once")]
    if asked.remembers:
        here = f"Allow in this conversation: {_short(asked.remembers)}"
        always = f"Always allow: {_short(asked.remembers)}"
        made.append(schema.PermissionOption(option_id="conversation", name=here, kind="allow_always"))
        made.append(schema.PermissionOption(option_id="always", name=always, kind="allow_always"))
    return [*made, schema.PermissionOption(option_id="deny", name="Deny", kind="reject_once")]


def chosen(response: schema.RequestPermissionResponse) -> events.Answered:
    """What was answered; whatever is not one of the ways to say yes is a no."""
    match response.outcome:
        case schema.AllowedOutcome(option_id="once" | "conversation" | "always" as answered):
            return answered
        case _:
            return "deny"


def question(asked: events.ApprovalAsked, *, whole: bool = True) -> list[schema.ContentToolCallContent]:
    """What is asked, in words that are seen as they are; the `whole` of it, where no difference shows that."""
    more = asked.detail if whole and asked.detail not in asked.summary else ""
    # The choices have room for a line of it.
    cut = asked.remembers != _short(asked.remembers)
    said = [f"{asked.danger}\n{asked.summary}".strip(), more, f"Would be remembered: {asked.remembers}" if cut else ""]
    return [
        schema.ContentToolCallContent(type="content", content=block(fenced(diff.escape_hidden(each).rstrip())))
        for each in said
        if each
    ]


# --- how a turn ended ----------------------------------------------------------------------------------


def stop(result: events.TurnResult) -> Stop:
    """Why a turn ended; RpcRefused, with the sentence for people, where it failed."""
    match result.exit_reason:
        case "completed" | "model" if result.refused:
            return "refusal"
        case "completed":
            return "max_tokens" if result.partial else "end_turn"
        case "interrupted":
            return "cancelled"
        case "steps" | "cost":
            return "max_turn_requests"
        case _:
            raise errors.RpcRefused(
                frames.INTERNAL, result.error or "The turn failed.", {"type": f"turn.{result.exit_reason}"}
            )
