"""Holders: which processes may be called dead, and how that is found out."""

from __future__ import annotations

import os

import pytest

from holdfast.store import holders


def test_where_signal_0_is_no_question_no_process_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = holders.this_process("me")
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: sent.append(pid))
    monkeypatch.setattr(os, "name", "nt")
    monkeypatch.setattr(os.path, "isdir", lambda _: False)
    dead = holder.is_dead()
    monkeypatch.undo()
    assert not dead
    assert sent == []
