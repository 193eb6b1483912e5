"""Matrix events: the fields that are read, and the content of the messages that are sent. Pure.

Every member of a room controls the content of its events, so an event that does not have these types is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from markdown_it import MarkdownIt

from holdfast.gateway import platform

MAX_CONTENT_BYTES = 60_000
"""The largest content of a message; an event may have 65,536 bytes."""
MAX_FALLBACK = 200
"""The characters of an edit that clients show if they do not support edits."""
CHOICES = "io.github.holdfast-agent.choices"
"""The field of a question with the texts that its choices stand for."""
KEYCAP = "\ufe0f\u20e3"
_MENTION_LINK = re.compile(r"(?i)(matrix:|[a-z+.-]*:?//(www\.)?matrix\.to\b)")
_REPLY_FALLBACK = re.compile(r"\A(> .*\n)+\n?")


# --- inbound -------------------------------------------------------------------------------------------------


class EventReference(msgspec.Struct, frozen=True):
    event_id: str


class Relation(msgspec.Struct, frozen=True):
    """The relation of an event to another: a thread, an edit, a reaction or a reply."""

    rel_type: str = ""
    event_id: str = ""
    key: str = ""
    is_falling_back: bool = False
    reply: EventReference | None = msgspec.field(name="m.in_reply_to", default=None)


class Mentions(msgspec.Struct, frozen=True):
    user_ids: tuple[str, ...] = ()


class FileInfo(msgspec.Struct, frozen=True):
    mimetype: str = "application/octet-stream"
    size: int = 0


class Content(msgspec.Struct, frozen=True):
    """The content of a message, a reaction or a redaction."""

    msgtype: str = ""
    body: str = ""
    filename: str | None = None
    url: str | None = None
    info: FileInfo = FileInfo()
    redacts: str = ""
    replacement_room: str = ""
    relation: Relation = msgspec.field(name="m.relates_to", default=Relation())
    mentions: Mentions | None = msgspec.field(name="m.mentions", default=None)
    new: Content | None = msgspec.field(name="m.new_content", default=None)
    choices: tuple[str, ...] = msgspec.field(name=CHOICES, default=())

    @property
    def thread(self) -> str:
        """The event id of the root of the thread; empty if the event is in none."""
        return self.relation.event_id if self.relation.rel_type == "m.thread" else ""

    @property
    def replied_to(self) -> str:
        """The event id of the message that this one replies to. In a thread, clients add the last one by themselves."""
        reply = self.relation.reply
        return "" if reply is None or (self.thread and self.relation.is_falling_back) else reply.event_id

    @property
    def text(self) -> str:
        """The text without the quotation that older clients put before a reply; for a file, its caption."""
        if self.url is not None:
            return self.body if self.filename not in (None, self.body) else ""
        return _REPLY_FALLBACK.sub("", self.body) if self.replied_to else self.body


class BundledRelations(msgspec.Struct, frozen=True):
    edit: RoomEvent | None = msgspec.field(name="m.replace", default=None)


class UnsignedData(msgspec.Struct, frozen=True):
    """The data that the homeserver adds to an event."""

    relations: BundledRelations = msgspec.field(name="m.relations", default=BundledRelations())


class RoomEvent(msgspec.Struct, frozen=True):
    type: str
    event_id: str
    sender: str
    content: Content = Content()
    redacts: str = ""
    unsigned: UnsignedData = UnsignedData()

    @property
    def text(self) -> str:
        """The text after the last edit."""
        edit = self.unsigned.relations.edit
        return ((edit and edit.content.new) or self.content).text


def parse_event(source: dict[str, Any]) -> RoomEvent | None:
    """Return an event; None if it is malformed."""
    try:
        return msgspec.convert(source, RoomEvent)
    except msgspec.ValidationError:
        return None


def is_own_join(source: dict[str, Any], user_id: str) -> bool:
    """Return whether an event is the moment at which the user joined the room, not only a change of the name."""
    if source.get("type") != "m.room.member" or source.get("state_key") != user_id:
        return False
    before = (source.get("unsigned") or {}).get("prev_content") or {}
    return bool(source["content"].get("membership") == "join" != before.get("membership"))


def is_mentioned(content: Content, user_id: str) -> bool:
    """Return whether a message mentions a user. Clients without `m.mentions` only write the id."""
    return user_id in (content.body if content.mentions is None else content.mentions.user_ids)


def strip_mention(text: str, names: Sequence[str]) -> str:
    """Return a text without a mention of the user with this id and names at its beginning: a command may follow it."""
    user_id, *others = map(re.escape, filter(None, names))
    return re.sub(rf"(?i)\A({user_id}[:,]?|@?({'|'.join(others)})[:,])\s+", "", text)


def chosen_number(answer: str) -> int | None:
    """Return the number that an answer to a question consists of; None if it is another text."""
    number = answer.strip().removesuffix(KEYCAP).removesuffix(KEYCAP[1])
    return int(number[:3]) if number.isascii() and number.isdigit() else None


def chosen_text(question: RoomEvent | None, number: int | None, user_id: str) -> str | None:
    """Return the text of the choice that a number selects, if the user `user_id` asked the question."""
    if question is None or question.sender != user_id or number is None:
        return None
    return dict(enumerate(question.content.choices, 1)).get(number)


# --- outbound ------------------------------------------------------------------------------------------------


def _is_link_allowed(url: str) -> bool:
    """Clients show links to users as mentions."""
    return bool(re.match(r"(?i)(https?://|mailto:)", url)) and not _MENTION_LINK.match(url)


_MARKDOWN = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
_MARKDOWN.disable("image")  # Clients show images of the media repository only.
_MARKDOWN.validateLink = _is_link_allowed  # type: ignore[method-assign]


def text_content(text: str, msgtype: str = "m.text") -> dict[str, Any]:
    """Return the content of a Markdown message. It mentions no user, whatever the text says."""
    content: dict[str, Any] = {"msgtype": msgtype, "body": text, "m.mentions": {}}
    html = {"format": "org.matrix.custom.html", "formatted_body": _MARKDOWN.render(text).strip()}
    formatted = {**content, **html}
    return formatted if len(msgspec.json.encode(formatted)) <= MAX_CONTENT_BYTES else content


def edit_content(content: dict[str, Any], event_id: str) -> dict[str, Any]:
    """Return the content that replaces that of an earlier message."""
    fallback = {"msgtype": content["msgtype"], "body": f"* {content['body'][:MAX_FALLBACK]}", "m.mentions": {}}
    return {
        **fallback,
        "m.new_content": content,
        "m.relates_to": {"rel_type": "m.replace", "event_id": event_id},
    }


def question_content(text: str, question: platform.ApprovalQuestion) -> dict[str, Any]:
    """Return the content of a question with numbered choices."""
    lines = [f"{number}. {each.label}" for number, each in enumerate(question.choices, 1)]
    content = text_content("\n".join([text, "", *lines, "", "React with a number, or reply to this message with it."]))
    return {**content, CHOICES: [each.text for each in question.choices]}


def file_content(file: platform.OutgoingFile, url: str) -> dict[str, Any]:
    kind = file.media_type.partition("/")[0]
    return {
        "msgtype": f"m.{kind}" if kind in ("image", "audio", "video") else "m.file",
        "body": file.name,
        "filename": file.name,
        "url": url,
        "info": {"mimetype": file.media_type, "size": file.size},
        "m.mentions": {},
    }


def with_thread(content: dict[str, Any], address: dict[str, Any]) -> dict[str, Any]:
    """Return the content in the thread of an address, if there is one."""
    if not address.get("thread"):
        return content
    relation = {
        "rel_type": "m.thread",
        "event_id": address["thread"],
        "is_falling_back": True,
        "m.in_reply_to": {"event_id": address["event"]},
    }
    return {**content, "m.relates_to": relation}
