"""Find the conversation that the history of a chat request continues.

Clients of the OpenAI API send the whole chat with every request and no id for it. The key of every request therefore
begins with a digest of its messages: the history of the next request, without its last answer, has the same digest, so
the previous request is found by its key, and with it the conversation. The digest covers the owner and the roles and
texts of users and assistants, without system messages and images. The last answer is compared with the log, to
distinguish chats that began with the same texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from holdfast import content_parts, errors, types
from holdfast.agent import loop
from holdfast.gateway.platforms.http import chat_completions, inline_images
from holdfast.runtime import wording
from holdfast.store import async_db

MAX_CANDIDATES = 50
MAX_TURN = 1_000
"""How many messages after a request are read to find its answer."""
MIN_APART = 86_400.0
"""Seconds between two identical chats after which the later one is chosen."""


class HistoryMatch(NamedTuple):
    """A request whose answer is the last answer in the history."""

    request: types.InboundMessage
    conversation_id: str
    answer_seq: int
    """The last message of its turn."""
    is_tip: bool
    """Whether the conversation has no later answer."""


def normalize(text: str) -> str:
    """Normalize a text for comparison: clients change white space and the addresses of images."""
    return " ".join(inline_images.MARKDOWN.sub("", text).split())


def digest(owner: str, turns: Sequence[chat_completions.Turn]) -> str:
    """Return the digest of a history of one owner, in 40 hexadecimal characters."""
    digested = [owner, [(each.role, normalize(each.text)) for each in turns]]
    return blake2b(msgspec.json.encode(digested), digest_size=20).hexdigest()


async def find(
    db: async_db.AsyncSessionDB, platform: str, owner: str, before: Sequence[chat_completions.Turn]
) -> HistoryMatch | None:
    """Return the request whose answer is the last message of `before`; None if there is none or it is ambiguous.

    Of several identical chats, one that still ends there is preferred, then the latest. If two such chats were active
    within a day of each other, none is chosen: a new conversation is better than a wrong one.
    """
    if len(before) < 2:
        return None
    sent, tip, other = normalize(before[-1].text), None, None
    for request in await db.mail.inbound_with_prefix(platform, digest(owner, before[:-1]), MAX_CANDIDATES):
        if tip is not None and tip.request.at - request.at >= MIN_APART:
            break
        match = await _match(db, request, sent) if request.sender == owner else None
        if match is None:
            continue
        if not match.is_tip:
            other = other or match
        elif tip is not None:
            return None
        else:
            tip = match
    return tip or other


async def _match(db: async_db.AsyncSessionDB, request: types.InboundMessage, sent: str) -> HistoryMatch | None:
    """Compare the answer to a request in the log with what the client sent; None if it is another one."""
    if request.conversation_id is None or request.seq is None or request.redacted:
        return None
    try:
        messages = await db.transcript(request.conversation_id, request.seq, request.seq + MAX_TURN)
    except errors.NoSuchSession:
        return None
    texts, end, is_cut, is_tip = list[str](), request.seq, False, True
    is_own, is_notice = True, False
    for message in messages:
        if message.role == "user" and not message.uid.startswith(loop.STEERED):
            # HTTP clients receive neither notices nor the model's answers to them.
            is_notice = bool(content_parts.notice_kind(message.content))
            is_own = is_own and is_notice
        elif is_notice:
            continue
        elif is_own:
            end = message.seq
            if message.role == "assistant":
                texts.append(content_parts.text(message.content))
                is_cut = content_parts.is_cut(message.content)
        elif message.role == "assistant" and not message.tool_calls and not _is_broken_off(message.content):
            is_tip = False
            break
    if not _is_answer(texts, is_cut or not texts, sent):
        return None
    return HistoryMatch(request, request.conversation_id, end, is_tip)


def _is_answer(texts: list[str], is_cut: bool, sent: str) -> bool:
    """Return whether a client may have received this: the last message of a turn or, in a stream, all messages."""
    if not texts or not texts[-1].strip():
        texts = [*texts, wording.EMPTY_REPLY]
    answers = {normalize(texts[-1]), normalize("\n\n".join(texts))}
    # A client that stopped the answer has a prefix of it.
    return sent in answers or (is_cut and any(each.startswith(sent) for each in answers))


def _is_broken_off(content: types.Content) -> bool:
    """Return whether an answer was interrupted or lost. An answer that is only too long reached its client."""
    return (
        isinstance(content, list)
        and content_parts.is_cut(content)
        and content[-1] != content_parts.cut(loop.OUTPUT_LIMIT)
    )
