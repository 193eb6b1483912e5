"""Who wrote a message. Pure.

APIs have few roles, so the user role also carries notices of programs, tool results whose call is gone, and summaries.
None of those were written by the user.
"""

from __future__ import annotations

from holdfast import content_parts, types
from holdfast.store import tool_pairs

SUMMARY = "summary:"
STEERED = "steer:"
"""The uid prefix of a user message that was sent into a running turn."""


def role_of(message: types.Message) -> types.Role:
    """Return the role of the author: `user` is a person; a notice or a late tool result counts as `tool`."""
    return "tool" if message.role == "user" and (tool_pairs.is_late(message) or is_notice(message)) else message.role


def is_summary(message: types.Message) -> bool:
    """Whether the message is the summary of earlier messages."""
    return message.uid.startswith(SUMMARY)


def is_notice(message: types.Message) -> bool:
    """Whether a program sent the message in the user role. A notice can start a turn."""
    return message.role == "user" and bool(content_parts.notice_kind(message.content))


def is_ask(message: types.Message) -> bool:
    """Whether the user wrote the message."""
    return role_of(message) == "user" and not is_summary(message)


def begins_exchange(message: types.Message) -> bool:
    """Whether the user started an exchange with the message; one sent into a running turn belongs to that turn."""
    return is_ask(message) and not message.uid.startswith(STEERED)
