"""`db.mail`: inbound and outbound messages of chat platforms, and leases on chats."""

from __future__ import annotations

from holdfast.store.mail import chat_leases, inbound, inbox, queue_status


class Mail(inbound.InboundMessages, inbox.Inbox, chat_leases.ChatLeases, queue_status.QueueStatus):
    """Inbound messages, the inbox of each conversation, the outbox and chat leases."""
