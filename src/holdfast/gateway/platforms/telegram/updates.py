"""Translate updates of the Bot API to inbound messages. Pure.

Names and texts are user input. Text that is forwarded, or that an inline bot wrote, is not the sender's: it becomes a
JSON string with its origin, so it cannot be a command or pass for an instruction of the user.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import telegram
from telegram.constants import ChatType, MessageEntityType

from holdfast.agent import commands
from holdfast.gateway import platform
from holdfast.store import titles

ALLOWED = ("message", "edited_message", "callback_query")
"""The types of updates that Telegram delivers."""
FORWARDED, INLINE = "[Forwarded message of {by}: {text}]", "[Text of the bot {by}: {text}]"


class FileReference(NamedTuple):
    """A file of an inbound message, before it is downloaded."""

    file_id: str
    name: str
    media_type: str
    size: int


def message_key(chat: int, message_id: int) -> str:
    """Return the key of a message: Telegram's ids of messages are unique within a chat."""
    return f"{chat}:{message_id}"


def read_message(name: str, me: telegram.User, update: telegram.Update, answers_all: bool) -> platform.Incoming | None:
    """Return the message or edit of an update without its files; None if it has no sender that can be answered."""
    message = update.message or update.edited_message
    if message is None or message.is_automatic_forward:
        return None
    sender = message.sender_chat or message.from_user
    if sender is None or (isinstance(sender, telegram.User) and sender.is_bot):
        return None
    key, is_edit = message_key(message.chat.id, message.message_id), update.message is None
    text, is_addressed = _read_text(me, message)
    place = _place(message)
    return platform.Incoming(
        platform=name,
        key=f"{key}:{_version(message)}" if is_edit else key,
        sender=str(sender.id),
        name=_display_name(sender),
        text=text,
        mentioned=is_addressed or answers_all or place["kind"] == "dm",
        reply_to=_read_quote(message),
        edits=key if is_edit else "",
        **place,
    )


def _version(message: telegram.Message) -> str:
    """Identify an edit: not by its update, because a reaction is an update with the same text and date."""
    text, date = message.text or message.caption or "", message.edit_date
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"{date.timestamp() if date else 0:.0f}:{digest}"


def read_button(name: str, update: telegram.Update) -> platform.Incoming | None:
    """Return the choice of a pressed button; None if the message does not show such a button."""
    query = update.callback_query
    if query is None or not isinstance(query.message, telegram.Message) or query.message.reply_markup is None:
        return None
    shown = {each.callback_data for row in query.message.reply_markup.inline_keyboard for each in row}
    # A client can send data that no button has.
    if not isinstance(query.data, str) or query.data not in shown:
        return None
    return platform.Incoming(
        platform=name,
        key=f"button:{query.id}",
        sender=str(query.from_user.id),
        name=_display_name(query.from_user),
        text=query.data,
        **_place(query.message),
    )


def find_files(message: telegram.Message) -> list[FileReference]:
    """Return the files of a message; of a photo the largest size."""
    found = list[FileReference]()
    if message.photo:
        photo = message.photo[-1]
        found.append(FileReference(photo.file_id, "photo.jpg", "image/jpeg", photo.file_size or 0))
    # An animation is also sent as a document.
    for each in (message.document, message.voice, message.audio, message.video, message.video_note):
        if each is not None:
            name = getattr(each, "file_name", None) or _default_name(each)
            media_type = getattr(each, "mime_type", None) or "application/octet-stream"
            found.append(FileReference(each.file_id, name, media_type, each.file_size or 0))
    return found


def _default_name(file: object) -> str:
    names = {telegram.Voice: "voice.ogg", telegram.Audio: "audio.mp3", telegram.Document: "file"}
    return names.get(type(file), "video.mp4")


def _place(message: telegram.Message) -> dict[str, Any]:
    """Return kind, chat and address: a topic is a thread of its group, or a separate direct chat."""
    chat, is_private = message.chat.id, message.chat.type == ChatType.PRIVATE
    # A reply outside of a topic has a thread id, too.
    thread = message.message_thread_id if message.is_topic_message else None
    ids = (str(chat),) if thread is None else (str(chat), str(thread))
    address: dict[str, Any] = {"chat": chat} if thread is None else {"chat": chat, "thread": thread}
    if is_private:
        return {"kind": "dm", "chat": ids, "address": address}
    kind = "group" if thread is None else "thread"
    return {"kind": kind, "chat": ids, "address": {**address, "reply_to": message.message_id}}


def _read_text(me: telegram.User, message: telegram.Message) -> tuple[str, bool]:
    """Return the text of a message without the bot's name at its beginning, and whether the bot is addressed."""
    text = message.text or message.caption or ""
    entities = message.parse_entities() if message.text else message.parse_caption_entities()
    own = f"@{me.username}".lower()
    if message.forward_origin is not None or message.via_bot is not None:
        origin, bot = message.forward_origin, message.via_bot
        by, template = (_origin_name(origin), FORWARDED) if origin is not None else (f"@{bot and bot.username}", INLINE)
        return (template.format(by=_quoted(by), text=_quoted(text)) if text else ""), False
    reply = message.reply_to_message
    is_addressed = bool(reply and reply.from_user and reply.from_user.id == me.id and not reply.forum_topic_created)
    for entity, part in entities.items():
        if entity.type == MessageEntityType.BOT_COMMAND and entity.offset == 0:
            name, at, to = part.partition("@")
            if at and f"@{to}".lower() != own:
                return "", False  # A command for another bot.
            text = f"{name}{text[len(part) :]}"
            is_addressed = is_addressed or bool(at) or commands.find(text) is not None
        elif entity.type == MessageEntityType.MENTION and part.lower() == own:
            is_addressed = True
            text = text[len(part) :].lstrip() if entity.offset == 0 else text
        elif entity.type == MessageEntityType.TEXT_MENTION and entity.user and entity.user.id == me.id:
            is_addressed = True
    # Telegram sends /start when a user opens the chat with a bot.
    return ("/help" if commands.split(text)[0] == "start" and commands.is_command(text) else text), is_addressed


def _read_quote(message: telegram.Message) -> platform.Quote | None:
    reply, external = message.reply_to_message, message.external_reply
    if external is not None and message.quote:  # A message of another chat: the bot sees only what the user selected.
        return platform.Quote(f"external:{message.id}", message.quote.text, _origin_name(external.origin))
    # Every message of a topic replies to the message that created the topic.
    if reply is None or reply.forum_topic_created:
        return None
    text = message.quote.text if message.quote else reply.text or reply.caption or ""
    sender = reply.sender_chat or reply.from_user
    return platform.Quote(
        message_key(message.chat.id, reply.message_id), text, _display_name(sender) if sender is not None else ""
    )


def _display_name(sender: telegram.User | telegram.Chat) -> str:
    return titles.normalize(getattr(sender, "title", None) or sender.full_name or sender.username or "")


def _origin_name(origin: telegram.MessageOrigin) -> str:
    """Return the name of the person, bot or chat that wrote a message elsewhere."""
    found = (getattr(origin, name, None) for name in ("sender_user", "sender_chat", "chat"))
    sender = next(filter(None, found), None)
    return titles.normalize(getattr(origin, "sender_user_name", "")) if sender is None else _display_name(sender)


def _quoted(text: str) -> str:
    """Return a JSON string, whose end cannot be forged."""
    return msgspec.json.encode(text).decode()
