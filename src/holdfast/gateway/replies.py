"""Build outbound messages: the text of a turn's result, split into parts that the platform can send. Pure.

A turn with a text is answered by that text, unchanged. A turn without one is answered by its outcome, so that the user
always gets an answer; only a turn that the user stopped has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from holdfast import content_parts, events, redaction, types
from holdfast.agent import commands
from holdfast.agent.commands import context as context_commands
from holdfast.agent.commands import conversations
from holdfast.gateway import gateway_context, platform, text_split
from holdfast.runtime import wording
from holdfast.store import titles

MAX_PARTS = 100
"""The parts of one reply; a longer one ends with a notice."""
DEFAULT_LIMIT = 4_000
"""The message limit for a platform that does not run in this process."""
MAX_FAILURE = 300
"""The longest error text in a reply, in characters."""

MAX_FILE_NAME = 100

CUT_SHORT = "[The reply is too long for this chat. The conversation contains all of it.]"
TOO_LARGE = (
    "The conversation is too large for the model's context window. "
    f"{commands.command_line(context_commands.compact)} shortens it; "
    f"{commands.command_line(conversations.new)} begins a new one."
)
TRY_AGAIN = f"Try again, or {commands.command_line(conversations.new)} to begin a new conversation."
SPEAKERS = 'Several people share this chat. Who wrote the lines that begin with ">", as they call themselves: {names}.'
QUOTED = "This message is a reply to an earlier message{by}: {text}"
EDITED = "This message replaces an earlier message of the user, which was edited."


def result_text(result: events.TurnResult) -> str | None:
    """Return the reply to a turn; None: no reply."""
    if result.final_response.strip():
        return result.final_response
    if result.interrupted and result.api_calls:
        return None
    if result.exit_reason == "overflow":
        return TOO_LARGE
    if result.failed:
        return f"{failure_text(result.error)}\n{TRY_AGAIN}"
    sentence = wording.turn_finished(result)
    return _shorten(sentence.text) if sentence is not None else None


def failure_text(error: str | None) -> str:
    """Return the message for the user about an error of the model."""
    return f"The request failed: {_shorten(error or 'unknown error')}"


def _shorten(error: str) -> str:
    text = redaction.redact(error).strip()
    return text if len(text) <= MAX_FAILURE else f"{text[: MAX_FAILURE - 1]}…"


def build(
    context: gateway_context.GatewayContext,
    to: gateway_context.ReplyAddress,
    text: str | None,
    *,
    kind: types.OutgoingKind = "reply",
    attachments: Mapping[str, str] = MappingProxyType({}),
    seq: int | None = None,
) -> list[types.NewOutgoing]:
    """Return the messages of a text and its attachments, file names by digest.

    The attachments belong to the last part of the text, or each is a message of its own, as the platform prefers.
    """
    target, can = context.platforms.get(to.platform), context.can(to.platform)
    limit = target.limit if target is not None else DEFAULT_LIMIT
    texts = text_split.split(text or "", limit, can.format.measure if can.format is not None else len)
    if len(texts) > MAX_PARTS:
        texts = [*texts[: MAX_PARTS - 1], CUT_SHORT]
    parts: list[tuple[str, list[str]]] = [(part, []) for part in texts]
    if can.separate_files:
        parts += [("", [digest]) for digest in attachments]
    elif attachments:
        parts = [*parts[:-1], (texts[-1] if texts else "", list(attachments))]
    return [
        types.NewOutgoing(
            platform=to.platform,
            chat=to.chat,
            address=to.address,
            text=part,
            kind=kind,
            attachments=files,
            file_names={digest: attachments[digest] for digest in files if attachments[digest]},
            seq=seq,
        )
        for part, files in parts
    ]


def find_attachments(messages: Sequence[types.Message]) -> dict[str, str]:
    """Return the files that tools sent in a turn and the images of its answer: file names by digest."""
    found = dict[str, str]()
    for message in messages:
        kind = {"tool": "file", "assistant": "image"}.get(message.role)
        for part in message.content if isinstance(message.content, list) else []:
            if part.get("type") == kind and isinstance(digest := part.get("blob"), str):
                found[digest] = titles.normalize(str(part.get("name", "")))[-MAX_FILE_NAME:]
    return found


def user_content(
    inbound: Sequence[types.InboundMessage], text: str, shared: bool, file_notes: Sequence[str] = ()
) -> types.Content | None:
    """Return the content of the user message that inbound messages become; None if it is only the text.

    Notes tell the model who speaks in a shared chat, which message is quoted, and where received files are. A display
    name is user text: it is quoted, and the sender's id follows it. The text of a shared chat is marked line by line,
    so that it cannot imitate a note about another sender.
    """
    parts = [part for each in inbound for part in platform.content_parts_of(each)]
    notes = list[str]()
    if shared:
        notes.append(SPEAKERS.format(names=", ".join(dict.fromkeys(map(_speaker, inbound)))))
    for each in inbound:
        if (quote := platform.read_extra(each, platform.Quote)) is not None and quote.text:
            by = f" of {_quoted(name)}" if (name := titles.normalize(quote.name)) else ""
            notes.append(QUOTED.format(by=by, text=_quoted(quote.text[: platform.MAX_QUOTE])))
        if platform.read_extra(each, platform.MessageEdit) is not None:
            notes.append(EDITED)
    notes += file_notes
    if not parts and not notes:
        return None
    texts = [content_parts.quoted(text) if shared else {"type": "text", "text": text}] if text else []
    return [*map(content_parts.note, notes), *texts, *parts]


def _speaker(inbound: types.InboundMessage) -> str:
    sender = _quoted(titles.normalize(inbound.sender))
    return f"{_quoted(titles.normalize(inbound.name))} (id {sender})" if inbound.name else f"id {sender}"


def _quoted(text: str) -> str:
    """Return a JSON string, whose end cannot be forged."""
    return msgspec.json.encode(text).decode()
