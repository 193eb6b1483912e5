"""Who really said a message. Pure.

Providers know few roles: in the user's place stand also what a program tells, a result whose call is gone, and the
summary. To whoever looks for what a person wants, none of them is a person, whatever it says.
"""

from __future__ import annotations

from holdfast import content_parts, types
from holdfast.store import tool_pairs

SUMMARY = "summary:"
STEERED = "steer:"
"""How the uid begins of what a person said into a turn that was under way."""


def of(message: types.Message) -> types.Role:
    """The role of whoever said it: `user` is a person, `tool` also a program or a late result."""
    return "tool" if message.role == "user" and (tool_pairs.is_late(message) or is_notice(message)) else message.role


def is_summary(message: types.Message) -> bool:
    """Whether it stands for what was said before, and was said by nobody."""
    return message.uid.startswith(SUMMARY)


def is_notice(message: types.Message) -> bool:
    """Whether a program tells it, in the user's place: a turn may begin with it."""
    return message.role == "user" and bool(content_parts.notice_kind(message.content))


def is_ask(message: types.Message) -> bool:
    """Whether a person said it."""
    return of(message) == "user" and not is_summary(message)


def begins(message: types.Message) -> bool:
    """Whether a person began an exchange with it: what was said into a running turn belongs to that turn's."""
    return is_ask(message) and not message.uid.startswith(STEERED)
