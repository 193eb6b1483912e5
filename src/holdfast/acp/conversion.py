"""Conversion between values of the protocol and ours. Pure.

A prompt becomes text and images; an embedded file is text in a code fence that nothing in the file can close. Tool
calls become kinds, titles and content that an editor can draw.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from acp import schema

from holdfast import errors, events, types
from holdfast.model import surrogates
from holdfast.rpc import frames
from holdfast.runtime import attachments
from holdfast.tools.files import diff

TITLE_CHARACTERS = 160
"""Characters of the title of a tool call."""
MAX_ARGUMENT_DEPTH = 100
"""Deeper arguments are cut: many JSON parsers give up at 128 levels, and a frame is around them."""

Block: TypeAlias = (
    schema.TextContentBlock
    | schema.ImageContentBlock
    | schema.AudioContentBlock
    | schema.ResourceContentBlock
    | schema.EmbeddedResourceContentBlock
)
ToolKind: TypeAlias = Literal[
    "read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"
]
StopReason: TypeAlias = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]

_KINDS: dict[str, ToolKind] = {
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
# An embedded file as it is stored after its URI.
_EMBEDDED = re.compile(r"\n(`{3,})\n(.*)\n\1\n\n", re.DOTALL)
# The arguments that a title shows, the first that is present.
_TITLE_ARGUMENTS = ("path", "pattern", "query", "folder", "name", "id", "text")


# --- prompts -------------------------------------------------------------------------------------------


class TextPiece(NamedTuple):
    """Text of a prompt: typed, or the content of a resource, which has a `uri`."""

    text: str
    uri: str = ""
    name: str = ""


class PromptContent(NamedTuple):
    """The pieces of a prompt, in order."""

    pieces: tuple[TextPiece | attachments.ImageData, ...]

    @property
    def text(self) -> str:
        """The typed text, with resources by name."""
        text = ""
        for each in self.pieces:
            if isinstance(each, TextPiece):
                word = f"@{each.name}" if each.uri else each.text
                is_apart = not text or not word or text[-1].isspace() or word[0].isspace()
                text += word if is_apart else f" {word}"
        return text.strip()

    @property
    def typed(self) -> str:
        """The typed text alone, unchanged."""
        return "".join(each.text for each in self.pieces if isinstance(each, TextPiece) and not each.uri)

    @property
    def is_plain(self) -> bool:
        """Whether the prompt consists of typed text only."""
        return all(isinstance(each, TextPiece) and not each.uri for each in self.pieces)


def parse_prompt(blocks: Sequence[Block]) -> PromptContent:
    """Convert the blocks of a prompt. Raises RpcRefused for an empty prompt and for content that cannot be read."""
    pieces = tuple(_parse_block(number, block) for number, block in enumerate(blocks, 1))
    attachments.check_count(sum(isinstance(piece, attachments.ImageData) for piece in pieces))
    if not any(isinstance(piece, attachments.ImageData) or piece.uri or piece.text.strip() for piece in pieces):
        raise errors.RpcRefused(frames.INVALID_PARAMS, "The prompt is empty: send text, an image or a resource.")
    return PromptContent(pieces)


def _parse_block(number: int, block: Block) -> TextPiece | attachments.ImageData:
    match block:
        case schema.TextContentBlock():
            return TextPiece(block.text)
        case schema.ImageContentBlock():
            return attachments.decode_image(block.data, f"Block {number}")
        case schema.ResourceContentBlock():
            return TextPiece(f"[{block.name}]({block.uri})", block.uri, block.name)
        case schema.EmbeddedResourceContentBlock():
            return _parse_resource(number, block.resource)
        case _:
            raise errors.RpcRefused(frames.INVALID_PARAMS, f"Block {number} is audio, which is not supported.")


def _parse_resource(
    number: int, given: schema.TextResourceContents | schema.BlobResourceContents
) -> TextPiece | attachments.ImageData:
    name = given.uri.rstrip("/").rpartition("/")[2] or given.uri
    if isinstance(given, schema.TextResourceContents):
        return TextPiece(f"\n\n{given.uri}\n{fence(given.text)}\n\n", given.uri, name)
    if (given.mime_type or "").startswith("image/"):
        return attachments.decode_image(given.blob, f"Block {number}")
    return TextPiece(f"\n\n[{given.uri} was attached. It is binary and cannot be read.]\n\n", given.uri, name)


def text_part(piece: TextPiece) -> dict[str, Any]:
    """Return the message part of a text; that of a resource keeps its URI for the replay."""
    plain: dict[str, Any] = {"type": "text", "text": piece.text}
    return plain | ({"resource": {"uri": piece.uri, "name": piece.name}} if piece.uri else {})


# --- content -------------------------------------------------------------------------------------------


def text_block(text: str) -> schema.TextContentBlock:
    return schema.TextContentBlock(type="text", text=surrogates.repair(text))


def content_blocks(content: types.Content) -> list[Block]:
    """Return the blocks of a person's message, without its images."""
    if isinstance(content, str):
        return [text_block(content)] if content else []
    return [block for each in content if (block := _content_block(each)) is not None]


def _content_block(part: Mapping[str, Any]) -> Block | None:
    match part:
        case {"type": "text", "text": str(text), "resource": {"uri": str(uri), "name": str(name)}}:
            embedded = _EMBEDDED.fullmatch(text.removeprefix(f"\n\n{uri}"))
            if embedded is None:
                return schema.ResourceContentBlock(type="resource_link", uri=uri, name=name)
            resource = schema.TextResourceContents(uri=uri, text=embedded[2])
            return schema.EmbeddedResourceContentBlock(type="resource", resource=resource)
        case {"type": "text" | "cut", "text": str(text)} if text:
            return text_block(text)
        case _:
            return None


def fence(text: str) -> str:
    """Put text into a code fence that is longer than any in the text."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    marks = "`" * (longest + 1)
    return f"{marks}\n{text}\n{marks}"


def format_answer(text: str) -> str:
    """Format the output of a command; a fence keeps its lines apart."""
    return fence(text.rstrip()) if "\n" in text.strip() else text.strip()


# --- tool calls ----------------------------------------------------------------------------------------


def tool_kind(tool: str) -> ToolKind:
    return _KINDS.get(tool, "other")


def parse_arguments(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call as a frame can carry them; {} if they cannot be parsed."""
    try:
        parsed = json.loads(given or "{}") if isinstance(given, str) else dict(given)
    except (ValueError, RecursionError):
        return {}
    clean = _clean(parsed, MAX_ARGUMENT_DEPTH)
    return clean if isinstance(clean, dict) else {}


def _clean(value: Any, levels: int) -> Any:
    """Replace unpaired surrogates, which no frame can carry, and cut what is nested too deeply."""
    match value:
        case dict() | list() if not levels:
            return "…"
        case dict():
            return {surrogates.repair(key): _clean(each, levels - 1) for key, each in value.items()}
        case list():
            return [_clean(each, levels - 1) for each in value]
        case _:
            return surrogates.repair(value)


def call_title(tool: str, arguments: Mapping[str, Any]) -> str:
    """Describe a call on one line."""
    if isinstance(line := arguments.get("command"), str) and tool in ("shell", "start_process"):
        return _shorten(line)
    names = (key for key in _TITLE_ARGUMENTS if isinstance(arguments.get(key), str | int))
    about = next((str(arguments[key]) for key in names), "")
    return _shorten(f"{_VERBS.get(tool, tool)} {about}")


def result_content(text: str) -> list[schema.ContentToolCallContent]:
    """Return the result of a call in a fence: as Markdown it could make an editor fetch an image from anywhere."""
    if not text.strip():
        return []
    return [schema.ContentToolCallContent(type="content", content=text_block(fence(text.rstrip())))]


def _shorten(text: str) -> str:
    line = diff.escape_hidden(" ".join(text.split()))
    return line if len(line) <= TITLE_CHARACTERS else f"{line[: TITLE_CHARACTERS - 1]}…"


# --- approvals -----------------------------------------------------------------------------------------


def permission_options(asked: events.ApprovalAsked) -> list[schema.PermissionOption]:
    """Return the possible answers to an approval request; the lasting ones only if a rule can be remembered."""
    options = [schema.PermissionOption(option_id="once", name="Allow once", kind="allow_once")]
    if asked.remembers:
        here = f"Allow in this conversation: {_shorten(asked.remembers)}"
        always = f"Always allow: {_shorten(asked.remembers)}"
        options.append(schema.PermissionOption(option_id="conversation", name=here, kind="allow_always"))
        options.append(schema.PermissionOption(option_id="always", name=always, kind="allow_always"))
    return [*options, schema.PermissionOption(option_id="deny", name="Deny", kind="reject_once")]


def parse_choice(
    response: schema.RequestPermissionResponse, options: Sequence[schema.PermissionOption]
) -> events.Answered:
    """Return the chosen answer, a denial unless an option allows. Raises ValueError if it was not offered."""
    match response.outcome:
        case schema.AllowedOutcome(option_id=chosen) if chosen not in (each.option_id for each in options):
            raise ValueError(f"{errors.quote(chosen)} was not offered.")
        case schema.AllowedOutcome(option_id="once" | "conversation" | "always" as chosen):
            return chosen
        case _:
            return "deny"


def approval_content(asked: events.ApprovalAsked, *, with_detail: bool = True) -> list[schema.ContentToolCallContent]:
    """Return what an approval request is about, in fences; `with_detail` unless a diff shows it."""
    detail = asked.detail if with_detail and asked.detail not in asked.summary else ""
    is_cut = asked.remembers != _shorten(asked.remembers)
    texts = [
        f"{asked.danger}\n{asked.summary}".strip(),
        detail,
        f"Would be remembered: {asked.remembers}" if is_cut else "",
    ]
    return [
        schema.ContentToolCallContent(type="content", content=text_block(fence(diff.escape_hidden(each).rstrip())))
        for each in texts
        if each
    ]


# --- the end of a turn ---------------------------------------------------------------------------------


def stop_reason(result: events.TurnResult) -> StopReason:
    """Return why a turn ended. Raises RpcRefused with the error of a turn that failed."""
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
                frames.INTERNAL_ERROR, result.error or "The turn failed.", {"type": f"turn.{result.exit_reason}"}
            )
