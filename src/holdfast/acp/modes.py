"""How a session behaves, as an editor shows and sets it: its mode, and the model that answers. Pure.

Editors of today know modes, newer ones options; both are told, and both are the same thing.
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
    "code": ("Code", "Changes files of the project without asking; asks before it runs commands or reaches out."),
    "read-only": ("Read only", "Looks and answers: it changes nothing and runs nothing."),
}


def strictest(*chosen: approvals.Mode) -> approvals.Mode:
    """The one of these that does least unasked."""
    return min(chosen, key=_STRICTEST_FIRST.index)


def of(name: object) -> approvals.Mode | None:
    """The mode of this name; None where there is none."""
    return next((each for each in get_args(approvals.Mode) if each == name), None)


def state(current: approvals.Mode) -> schema.SessionModeState:
    modes = [schema.SessionMode(id=mode, name=name, description=said) for mode, (name, said) in _NAMES.items()]
    return schema.SessionModeState(current_mode_id=current, available_modes=modes)


def options(
    mode: approvals.Mode, model: str, models: Sequence[str]
) -> list[schema.SessionConfigOptionSelect | schema.SessionConfigOptionBoolean]:
    """All there is to choose, and what was chosen."""
    names = [*dict.fromkeys([model, *models])]
    return [
        schema.SessionConfigOptionSelect(
            type="select",
            id=MODE,
            name="Mode",
            category="mode",
            description="What is done without asking.",
            current_value=mode,
            options=[
                schema.SessionConfigSelectOption(value=each, name=name, description=said)
                for each, (name, said) in _NAMES.items()
            ],
        ),
        schema.SessionConfigOptionSelect(
            type="select",
            id=MODEL,
            name="Model",
            category="model",
            description="Who answers, in this session until it is closed.",
            current_value=model,
            options=[schema.SessionConfigSelectOption(value=name, name=name) for name in names],
        ),
    ]
