"""A plan that the model keeps for the person to see: a tool whose call is shown as a plan, and nothing else.

It only exists in editors, which have a place to show one. The plan is in the log as the call that it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acp import schema

from holdfast import errors, types
from holdfast.model import surrogates
from holdfast.tools import base

NAME = "update_plan"
MOST = 100
STATES = ("pending", "in_progress", "completed")
PRIORITIES = ("high", "medium", "low")

SPEC = types.ToolSpec(
    NAME,
    "Show the person your plan for a task of several steps, and keep it current: call it again, with all steps, "
    "whenever one begins or is done. It changes nothing. A task of one or two steps needs no plan.",
    {
        "type": "object",
        "properties": {
            "steps": {
                "type": "array",
                "maxItems": MOST,
                "items": {
                    "type": "object",
                    "properties": {
                        "step": {"type": "string"},
                        "status": {"type": "string", "enum": [*STATES]},
                        "priority": {"type": "string", "enum": [*PRIORITIES]},
                    },
                    "required": ["step", "status"],
                },
            }
        },
        "required": ["steps"],
    },
)


async def _run(arguments: base.Arguments) -> types.Content:
    if update(arguments) is None:
        raise errors.ToolFailed(f"`steps` is a list of at most {MOST} objects with `step` and `status`.")
    return "The person sees it."


TOOL = base.Tool(SPEC, _run, parallel=True)


def update(arguments: Mapping[str, Any]) -> schema.AgentPlanUpdate | None:
    """The plan that a call shows; None where it is none."""
    steps = arguments.get("steps")
    if not isinstance(steps, list) or len(steps) > MOST:
        return None
    entries = [_entry(each) for each in steps]
    found = [each for each in entries if each is not None]
    return schema.AgentPlanUpdate(session_update="plan", entries=found) if len(found) == len(entries) else None


def _entry(step: object) -> schema.PlanEntry | None:
    if not isinstance(step, dict) or not isinstance(step.get("step"), str) or step.get("status") not in STATES:
        return None
    priority = step.get("priority", "medium")
    if priority not in PRIORITIES:
        return None
    return schema.PlanEntry(content=surrogates.repair(step["step"]), priority=priority, status=step["status"])
