"""The tool `update_plan`, whose calls an editor shows as a plan. It is offered in editors only.

The log contains the plan as the call that it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acp import schema

from holdfast import errors, types
from holdfast.model import surrogates
from holdfast.tools import base

NAME = "update_plan"
MAX_STEPS = 100
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
                "maxItems": MAX_STEPS,
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
    if plan_update(arguments) is None:
        raise errors.ToolFailed(f"`steps` must be a list of at most {MAX_STEPS} objects with `step` and `status`.")
    return "The plan is shown."


TOOL = base.Tool(SPEC, _run, parallel=True)


def plan_update(arguments: Mapping[str, Any]) -> schema.AgentPlanUpdate | None:
    """Return the plan of a call, or None if the arguments are invalid."""
    steps = arguments.get("steps")
    if not isinstance(steps, list) or len(steps) > MAX_STEPS:
        return None
    try:
        entries = [
            schema.PlanEntry(
                content=surrogates.repair(each["step"]), priority=each.get("priority", "medium"), status=each["status"]
            )
            for each in steps
        ]
    except (TypeError, AttributeError, LookupError, ValueError):
        return None
    return schema.AgentPlanUpdate(session_update="plan", entries=entries)
