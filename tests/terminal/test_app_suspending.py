"""Ctrl-Z on the full screen: it stands still until the terminal is its own again, and begins once."""

from __future__ import annotations

import signal

import pytest

from holdfast.tui import suspend


def test_nobody_else_hears_of_going_on_and_in_the_background_it_stands_still_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, heard = suspend.os.getpgrp(), list[object]()
    in_front = iter([own + 1, own])
    monkeypatch.setattr(suspend.os, "killpg", lambda *_: heard.append(signal.getsignal(signal.SIGCONT)))
    monkeypatch.setattr(suspend.os, "tcgetpgrp", lambda _: next(in_front))
    monkeypatch.setattr(suspend.sys, "__stdin__", None)
    before = signal.signal(signal.SIGCONT, lambda *_: None)
    try:
        mine = signal.getsignal(signal.SIGCONT)
        suspend.stop_until_foreground()
        assert heard == [signal.SIG_DFL, signal.SIG_DFL]
        assert signal.getsignal(signal.SIGCONT) is mine
    finally:
        signal.signal(signal.SIGCONT, before)
