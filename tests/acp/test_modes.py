"""Modes and options are two views of one choice."""

from __future__ import annotations

from typing import get_args

from holdfast.acp import modes
from holdfast.agent import approvals


def test_every_mode_there_is_can_be_chosen() -> None:
    for mode in get_args(approvals.Mode):
        shown = modes.state(mode)
        assert shown.current_mode_id == mode
        assert mode in [each.id for each in shown.available_modes]
        assert modes.of(mode) == mode


def test_what_is_no_mode_is_none() -> None:
    assert [modes.of(each) for each in ("", "ASK", None, 7, "yolo")] == [None] * 5


def test_the_model_that_answers_is_always_among_those_to_choose_and_each_is_there_once() -> None:
    _, model = modes.options("ask", "own/model", ["a/b", "own/model", "a/b"])
    assert model.current_value == "own/model"
    assert [each.value for each in model.options] == ["own/model", "a/b"]  # type: ignore[union-attr]
