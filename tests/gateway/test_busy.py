"""What becomes of what comes in beside a running turn."""

from __future__ import annotations

from typing import get_args

import pytest

from holdfast.agent import commands
from holdfast.gateway import busy


@pytest.mark.parametrize("mode", get_args(busy.Mode))
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        *((f"/{name}", "now") for name in sorted(busy.AT_ONCE)),
        ("/STOP", "now"),
        ("/approve always", "now"),
        ("/compact", "later"),
        ("/new", "later"),
        ("/nothing", "later"),
    ],
)
def test_commands_about_the_running_turn_do_not_wait_for_it(mode: busy.Mode, line: str, expected: str) -> None:
    assert busy.beside(mode, line) == expected


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
def test_messages_go_by_the_settings(mode: busy.Mode, plain: bool, expected: str, text: str) -> None:
    assert busy.beside(mode, text, plain) == expected


def test_the_commands_that_do_not_wait_exist() -> None:
    assert set(commands.COMMANDS) >= busy.AT_ONCE
