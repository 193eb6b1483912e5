"""The report: missed targets first, then all tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.figures import Figure

WIDTH = 62


def text(machine: Mapping[str, str], tables: Mapping[str, Sequence[Figure]]) -> str:
    every = [figure for lines in tables.values() for figure in lines]
    blocks = [" · ".join(f"{name} {value}" for name, value in machine.items()), summary(every)]
    blocks += [table(title, lines) for title, lines in tables.items()]
    return "\n\n".join(blocks)


def summary(every: Sequence[Figure]) -> str:
    judged = [figure for figure in every if figure.ok is not None]
    missed = [figure for figure in judged if not figure.ok]
    if not missed:
        return f"All {len(judged)} targets are met."
    title = f"MISSED: {len(missed)} of {len(judged)} targets"
    return "\n".join([title, *(line(figure) for figure in missed)])


def table(title: str, lines: Sequence[Figure]) -> str:
    head = f"  {'':<{WIDTH}} {'holdfast':>12}  {'baseline':<32} {'ratio':>8}  {'target':<10}"
    return "\n".join([title, head.rstrip(), *(line(figure) for figure in lines)])


def line(figure: Figure) -> str:
    baseline = f"{amount(figure.baseline[1], figure.unit)} ({figure.baseline[0]})" if figure.baseline else ""
    ratio = f"{figure.ratio:.2f} x" if figure.ratio is not None else ""
    verdict = {True: "ok", False: "MISSED", None: ""}[figure.ok]
    cells = f"  {figure.name:<{WIDTH}} {amount(figure.ours, figure.unit):>12}  {baseline:<32} {ratio:>8}"
    others = ", ".join(f"{name} {amount(value, figure.unit)}" for name, value in figure.others.items())
    target = str(figure.target) if figure.target else ""
    return f"{cells}  {target:<10} {verdict:<6} {others}".rstrip()


def amount(value: float, unit: str) -> str:
    digits = 0 if value >= 1_000 or value == int(value) else 1 if value >= 100 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f} {unit}".rstrip()
