"""What a section measures: one line, what stands beside it, and what it should reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Target:
    """A bound on the ratio to what stands beside a figure, or on the figure itself."""

    sign: Literal["<=", ">="]
    bound: float
    of: Literal["ratio", "value"] = "ratio"

    def met(self, measured: float) -> bool:
        return measured <= self.bound if self.sign == "<=" else measured >= self.bound

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}{' x' if self.of == 'ratio' else ''}"


def at_most(bound: float, of: Literal["ratio", "value"] = "ratio") -> Target:
    return Target("<=", bound, of)


def at_least(bound: float, of: Literal["ratio", "value"] = "ratio") -> Target:
    return Target(">=", bound, of)


@dataclass(frozen=True)
class Figure:
    """One line. `key` stays the same at any scale; `name` is for people and may hold sizes."""

    key: str
    name: str
    unit: str
    ours: float
    beside: tuple[str, float] | None = None
    target: Target | None = None
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        if self.beside is None:
            return None
        return self.ours / self.beside[1] if self.beside[1] else float("inf")

    @property
    def ok(self) -> bool | None:
        """Whether the target was met; None when there is none."""
        if self.target is None:
            return None
        measured = self.ours if self.target.of == "value" else self.ratio
        return measured is not None and self.target.met(measured)

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "name": self.name,
            "unit": self.unit,
            "holdfast": self.ours,
            "beside": dict([self.beside]) if self.beside else None,
            "ratio": self.ratio,
            "target": str(self.target) if self.target else None,
            "ok": self.ok,
            "others": dict(self.others),
        }


def compared(
    key: str, name: str, unit: str, values: Mapping[str, float], target: Target | None = None, factor: float = 1.0
) -> Figure:
    """Ours beside the floor, from values by the name of their system; what is left are peers."""
    peers = {system: value * factor for system, value in values.items() if system not in ("holdfast", "floor")}
    return Figure(key, name, unit, values["holdfast"] * factor, ("floor", values["floor"] * factor), target, peers)
