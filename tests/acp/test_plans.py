"""A plan is shown as it was given, or the model is told what is wrong with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import errors
from holdfast.acp import plans

STEP = {"step": "look", "status": "pending"}


def test_a_plan_is_shown_in_its_order() -> None:
    shown = plans.plan_update({"steps": [STEP, {"step": "leap", "status": "completed", "priority": "high"}]})
    assert shown is not None
    assert [(each.content, each.status, each.priority) for each in shown.entries] == [
        ("look", "pending", "medium"),
        ("leap", "completed", "high"),
    ]


@pytest.mark.parametrize(
    "steps",
    [
        None,
        "look",
        [7],
        [{}],
        [{"step": "x"}],
        [{"step": 7, "status": "pending"}],
        [{"step": "x", "status": "soon"}],
        [STEP | {"priority": "urgent"}],
        [STEP] * 101,
    ],
)
def test_what_is_no_plan_is_not_shown_and_the_model_is_told(steps: Any) -> None:
    assert plans.plan_update({"steps": steps}) is None
    with pytest.raises(errors.ToolFailed):
        asyncio.run(plans.TOOL.run({"steps": steps}))  # type: ignore[arg-type]
