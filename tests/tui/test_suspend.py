"""Suspending the app: it stays stopped until it is in the foreground again."""

from __future__ import annotations

import signal

import pytest

from holdfast.tui import suspend


def test_app_stops_again_in_the_background_and_restores_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    own, handlers = suspend.os.getpgrp(), list[object]()
    foreground = iter([own + 1, own])
    monkeypatch.setattr(suspend.os, "killpg", lambda *_: handlers.append(signal.getsignal(signal.SIGCONT)))
    monkeypatch.setattr(suspend.os, "tcgetpgrp", lambda _: next(foreground))
    monkeypatch.setattr(suspend.sys, "__stdin__", None)
    before = signal.signal(signal.SIGCONT, lambda *_: None)
    try:
        mine = signal.getsignal(signal.SIGCONT)
        suspend.stop_until_foreground()
        assert handlers == [signal.SIG_DFL, signal.SIG_DFL]
        assert signal.getsignal(signal.SIGCONT) is mine
    finally:
        signal.signal(signal.SIGCONT, before)
