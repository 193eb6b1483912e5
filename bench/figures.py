"""The figures of a section: a value, its baseline and its target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Target:
    """A bound on the ratio to the baseline, or on the value itself."""

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
    """One figure. `key` is the same at every scale; `name` is shown and may contain sizes."""

    key: str
    name: str
    unit: str
    ours: float
    baseline: tuple[str, float] | None = None
    target: Target | None = None
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        if self.baseline is None:
            return None
        return self.ours / self.baseline[1] if self.baseline[1] else float("inf")

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; None without a target."""
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
            "baseline": dict([self.baseline]) if self.baseline else None,
            "ratio": self.ratio,
            "target": str(self.target) if self.target else None,
            "ok": self.ok,
            "others": dict(self.others),
        }


def compare(
    key: str, name: str, unit: str, values: Mapping[str, float], target: Target | None = None, factor: float = 1.0
) -> Figure:
    """Return the figure of Holdfast relative to the floor, from values by system; other systems are listed, too."""
    peers = {system: value * factor for system, value in values.items() if system not in ("holdfast", "floor")}
    return Figure(key, name, unit, values["holdfast"] * factor, ("floor", values["floor"] * factor), target, peers)
