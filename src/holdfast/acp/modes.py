"""The options of a session: its permission mode and its model. Pure.

Older editors know modes, newer ones config options; both are sent and mean the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from acp import schema

from holdfast.agent import approvals

MODE, MODEL = "mode", "model"
DEFAULT: approvals.Mode = "ask"

_STRICTEST_FIRST: tuple[approvals.Mode, ...] = ("read-only", "ask", "code")
_NAMES: dict[approvals.Mode, tuple[str, str]] = {
    "ask": ("Ask", "Asks before it changes files or runs commands."),
    "code": ("Code", "Changes files of the project without asking; asks before it runs commands or uses the network."),
    "read-only": ("Read only", "Reads and answers; changes nothing and runs nothing."),
}


def strictest_mode(*chosen: approvals.Mode) -> approvals.Mode:
    return min(chosen, key=_STRICTEST_FIRST.index)


def parse_mode(name: object) -> approvals.Mode | None:
    """Return the mode of this name, or None if there is none."""
    return next((each for each in get_args(approvals.Mode) if each == name), None)


def mode_state(current: approvals.Mode) -> schema.SessionModeState:
    modes = [schema.SessionMode(id=mode, name=name, description=text) for mode, (name, text) in _NAMES.items()]
    return schema.SessionModeState(current_mode_id=current, available_modes=modes)


def config_options(
    mode: approvals.Mode, model: str, models: Sequence[str]
) -> list[schema.SessionConfigOptionSelect | schema.SessionConfigOptionBoolean]:
    """Return the config options of a session with their current values."""
    return [
        schema.SessionConfigOptionSelect(
            type="select",
            id=MODE,
            name="Mode",
            category="mode",
            description="What the agent may do without asking.",
            current_value=mode,
            options=[
                schema.SessionConfigSelectOption(value=each, name=name, description=text)
                for each, (name, text) in _NAMES.items()
            ],
        ),
        schema.SessionConfigOptionSelect(
            type="select",
            id=MODEL,
            name="Model",
            category="model",
            description="The model of this session, until it is closed.",
            current_value=model,
            options=[
                schema.SessionConfigSelectOption(value=name, name=name) for name in dict.fromkeys([model, *models])
            ],
        ),
    ]
