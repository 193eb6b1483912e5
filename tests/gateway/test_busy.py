"""What becomes of what comes in beside a running turn."""

from __future__ import annotations

from typing import get_args

import pytest

from holdfast.agent import commands
from holdfast.gateway import message_policy


@pytest.mark.parametrize("mode", get_args(message_policy.BusyMode))
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        *((f"/{name}", "now") for name in sorted(each.name for each in commands.COMMANDS.values() if each.during_turn)),
        ("/STOP", "now"),
        ("/approve always", "now"),
        ("/compact", "later"),
        ("/new", "later"),
        ("/nothing", "later"),
    ],
)
def test_commands_about_the_running_turn_do_not_wait_for_it(
    mode: message_policy.BusyMode, line: str, expected: str
) -> None:
    assert message_policy.action_during_turn(mode, line) == expected


@pytest.mark.parametrize(
    ("mode", "plain", "expected"),
    [
        ("queue", True, "later"),
        ("collect", True, "later"),
        ("steer", True, "steer"),
        ("steer", False, "later"),
        ("interrupt", True, "interrupt"),
        ("interrupt", False, "interrupt"),
    ],
)
@pytest.mark.parametrize("text", ["Hello", "//stop", "/etc/hosts is gone", "stop"])
def test_messages_go_by_the_settings(mode: message_policy.BusyMode, plain: bool, expected: str, text: str) -> None:
    assert message_policy.action_during_turn(mode, text, plain) == expected
