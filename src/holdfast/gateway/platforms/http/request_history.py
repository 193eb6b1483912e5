"""Which conversation the history of a chat request continues.

Clients of OpenAI's interface send the whole chat with every request and no name for it. The key of every request is
therefore made from a digest of its messages: the history of the next request, without its last answer, has the same
digest, so the previous request is found by its key, and with it the conversation. A digest covers the roles and words
of users and assistants, without system messages and pictures, and the owner: no history leads to another's
conversation. The last answer is compared with the log, as it decides between chats that began with the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from holdfast import content_parts, errors, types
from holdfast.agent import loop
from holdfast.gateway import reply_text
from holdfast.gateway.platforms.http import chat_completions, inline_images
from holdfast.store import async_db

MOST_CANDIDATES = 50
LONGEST_TURN = 1_000
"""Messages that are read after a request to find its answer."""
APART = 86_400.0
"""Seconds between two chats that are the same to the word, so that the later one is taken to be meant."""


class Match(NamedTuple):
    """A request that was answered with what the client sends as the last answer."""

    arrival: types.InboundMessage
    conversation_id: str
    answer_seq: int
    """The last message of its turn."""
    is_tip: bool
    """Whether nothing was answered in the conversation since."""


class _Turn(NamedTuple):
    """The messages after a request, as far as its client knows them."""

    texts: list[str]
    end: int
    is_cut: bool
    is_tip: bool

    def says(self, sent: str) -> bool:
        """Return whether a client may have been given this answer: its last message, or all of them in a stream."""
        told = {normalize(self.texts[-1]), normalize("\n\n".join(self.texts))}
        # A client that stopped the answer has as much of it as it had received by then.
        return sent in told or (self.is_cut and any(each.startswith(sent) for each in told))


def normalize(text: str) -> str:
    """Return a text as histories are compared: clients change blanks, line ends and the addresses of pictures."""
    return " ".join(inline_images.SHOWN.sub("", text).split())


def digest(owner: str, said: Sequence[chat_completions.Said]) -> str:
    """Return the digest of a history of one owner, in 40 hexadecimal characters."""
    told = [owner, [(each.role, normalize(each.text)) for each in said]]
    return blake2b(msgspec.json.encode(told), digest_size=20).hexdigest()


async def find(
    db: async_db.AsyncSessionDB, platform: str, owner: str, before: Sequence[chat_completions.Said]
) -> Match | None:
    """Return the request whose answer is the last message of `before`; None where there is none, or it is unclear.

    Of several chats that are the same to the word, one that still ends there is preferred, then the latest. If two
    such chats were active within a day of each other, none is chosen: a new conversation is better than a wrong one.
    """
    if len(before) < 2:
        return None
    sent, tip, other = normalize(before[-1].text), None, None
    for arrival in await db.mail.inbound_with_prefix(platform, digest(owner, before[:-1]), MOST_CANDIDATES):
        if tip is not None and tip.arrival.at - arrival.at >= APART:
            break
        turn = await _turn(db, arrival) if arrival.sender == owner else None
        if turn is None or arrival.conversation_id is None or not turn.says(sent):
            continue
        match = Match(arrival, arrival.conversation_id, turn.end, turn.is_tip)
        if not match.is_tip:
            other = other or match
        elif tip is not None:
            return None
        else:
            tip = match
    return tip or other


async def _turn(db: async_db.AsyncSessionDB, arrival: types.InboundMessage) -> _Turn | None:
    """Return the answer to a request from the log, and whether the conversation ends with it."""
    if arrival.conversation_id is None or arrival.seq is None or arrival.redacted:
        return None
    try:
        messages = await db.transcript(arrival.conversation_id, arrival.seq, arrival.seq + LONGEST_TURN)
    except errors.NoSuchSession:
        return None
    texts, end, is_cut, is_tip = list[str](), arrival.seq, False, True
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
    is_cut = is_cut or not texts
    if not texts or not texts[-1].strip():
        texts.append(reply_text.BLANK)
    return _Turn([each for each in texts if each.strip()], end, is_cut, is_tip)


def _is_broken_off(content: types.Content) -> bool:
    """Return whether an answer was stopped or lost. One that is only too long was given to its client."""
    return (
        isinstance(content, list)
        and content_parts.is_cut(content)
        and content[-1] != content_parts.cut(loop.OUTPUT_LIMIT)
    )
