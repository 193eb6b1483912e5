"""What goes out, as the store takes it: a text in parts that its platform can send, to one place. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from holdfast import content_parts, events, types
from holdfast.gateway import gateway_context, platform, text_split
from holdfast.store import titles

MOST_PARTS = 100
"""Messages one reply has at most; what is longer ends with a sentence that says so."""
CUT_SHORT = "[The reply is longer than a chat can take; the whole of it is in the conversation.]"


def to(
    where: gateway_context.Place,
    text: str | None,
    platforms: Mapping[str, platform.Platform],
    *,
    kind: types.OutgoingKind = "reply",
    attachments: Sequence[str] = (),
    seq: int | None = None,
) -> list[types.NewOutgoing]:
    """A text as the messages it is sent in; the attachments go with the last one."""
    split = text_split.split(text or "", platform.measured(platforms.get(where.platform)))
    if len(split) > MOST_PARTS:
        split = [*split[: MOST_PARTS - 1], CUT_SHORT]
    if attachments and not split:
        split = [""]
    last = len(split) - 1
    return [
        types.NewOutgoing(
            platform=where.platform,
            chat=where.chat,
            address=where.address,
            text=said,
            kind=kind,
            attachments=list(attachments) if number == last else [],
            seq=seq,
        )
        for number, said in enumerate(split)
    ]


def pictures(messages: Sequence[types.Message]) -> list[str]:
    """The attachments of the answer that a turn ended with."""
    content = messages[-1].content if messages and messages[-1].role == "assistant" else ""
    found = content if isinstance(content, list) else []
    return [part["blob"] for part in found if part.get("type") == "image" and isinstance(part.get("blob"), str)]


def told(event: events.AnyEvent) -> str:
    """What a command says by an event; empty where it says nothing to people."""
    match event:
        case events.Answer() | events.Notice() | events.Compacted():
            return event.text
        case events.Titled(title):
            return f"The title is now: {title}" if title else "The conversation has no title now."
        case _:
            return ""


def question(asked: events.ApprovalAsked) -> str:
    """What people are asked, and how to answer. What they would not see, or be led astray by, is spelled out."""
    number, detail = asked.number, seen(asked.detail)
    runs = re.findall("`+", detail)
    fence = "`" * max(3, 1 + max(map(len, runs), default=0))  # Nothing in it can be taken for its end.
    lines = [f"Question {number}: may I do this? {seen_line(asked.summary)}"]
    lines += [fence, detail, fence] if detail else []
    lines += [f"Look twice: {seen_line(asked.danger)}"] if asked.danger else []
    lines.append(f"/approve {number} allows it once, /deny {number} REASON does not.")
    if asked.remembers:
        lasting = f"/approve {number} conversation or /approve {number} always"
        lines.append(f"{lasting} allows from now on: {seen_line(asked.remembers)}")
    return "\n".join(lines)


def seen(text: str) -> str:
    """A text of which everything is seen, and nothing turns or hides the rest of it."""
    return text if text.isprintable() else "".join(c if c in "\n\t" else _spelled(c) for c in text)


def seen_line(text: str) -> str:
    """The same in one line."""
    return "".join(map(_spelled, text))


def _spelled(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def content(arrivals: Sequence[types.InboundMessage], text: str, shared: bool) -> types.Content | None:
    """A message with its parts; None where it is text and nothing else.

    In a chat that several people share the model is told who speaks. That stands with the message and not in the
    prompt: a name is whatever somebody chose to be called, so it is quoted, and the id beside it tells who it is.
    """
    more = [part for each in arrivals for part in each.parts if part.get("type") != "terms"]
    names = list(dict.fromkeys(map(_speaker, arrivals))) if shared else []
    if not more and not names:
        return None
    said = (
        [
            content_parts.note(
                f"Several people share this chat. Who says this, as they call themselves: {', '.join(names)}."
            )
        ]
        if names
        else []
    )
    return [*said, *([{"type": "text", "text": text}] if text else []), *more]


def _speaker(arrival: types.InboundMessage) -> str:
    """A name cannot end where it seems to, and two people of one name are two."""
    name, id_ = (msgspec.json.encode(titles.normalize(each)).decode() for each in (arrival.name, arrival.sender))
    return f"{name} (id {id_})" if arrival.name else f"id {id_}"
