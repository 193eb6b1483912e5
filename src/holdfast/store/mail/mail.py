"""`db.mail`: messages from outside and to outside, and the claims of the processes that work on them."""

from __future__ import annotations

from holdfast.store.mail import chat_leases, expiry, inbound, inbox, queue_status


class Mail(inbound.InboundMessages, inbox.Inbox, chat_leases.ChatLeases, queue_status.QueueStatus, expiry.Expiry):
    """Inbound messages, the inbox of each conversation, the outbox and chat claims."""
