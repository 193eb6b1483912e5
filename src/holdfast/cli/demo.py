"""`holdfast demo`: the same race twice, on naive tables and on the store, and what became of both.

Real processes compact one conversation and write to it at the same time. Everything printed is measured
from the two databases after all of them have gone.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from holdfast import errors, safe_text
from holdfast.cli import console, layout, lazy_group
from holdfast.cli.demo_race import naive, run, steady, values

NARROWEST = 100
"""Columns from which on both lineages fit next to each other."""
MOST_LINES = 40


class Both(NamedTuple):
    """The whole demo, measured."""

    plan: run.Plan
    naive: values.Result
    holdfast: values.Result
    seconds: float

    @property
    def held(self) -> bool:
        """Whether the store kept its promises: one head, nothing lost, one winner a round."""
        here = self.holdfast
        return (
            not (here.lost or here.forks or here.violations)
            and here.heads == 1
            and here.logged == frozenset(here.acknowledged)
            and here.outcomes.get("committed") == self.plan.rounds == len(here.places) - 1
        )


@click.command(name="demo")
@lazy_group.as_json
@click.option("--processes", type=click.IntRange(3, 32), default=6, show_default=True, help="Racing processes.")
@click.option("--rounds", type=click.IntRange(1, 100), default=4, show_default=True, help="Compactions raced for.")
@click.option("--seed", type=click.IntRange(0), help="How much is said when is decided by this (default: by chance).")
@click.option("--keep", type=click.Path(file_okay=False), metavar="DIR", help="Leave both databases in this directory.")
@click.pass_obj
def command(
    out: console.Console, as_json: bool, processes: int, rounds: int, seed: int | None, keep: str | None
) -> int:
    """Race processes that compact and append on one conversation: naive tables first, then the store."""
    plan = run.Plan(processes, rounds, random.randrange(100_000) if seed is None else seed)
    with _folder(keep) as folder, _tidy_when_ended():
        both = _raced(out, folder, plan)
    if as_json:
        out.json(_shape(both))
    else:
        _print(out, both)
        if keep:
            out.note(f"Both databases are in {folder}.")
    return 0 if both.held else 1


def _raced(out: console.Console, folder: str, plan: run.Plan) -> Both:
    began = time.monotonic()
    try:
        first = _side(out, "naive", naive, folder, plan)
        second = _side(out, "holdfast", steady, folder, plan)
    finally:
        out.progress("")
    return Both(plan, first, second, time.monotonic() - began)


def _side(out: console.Console, name: str, side: values.Side, folder: str, plan: run.Plan) -> values.Result:
    def progress(number: int) -> None:
        out.progress(f"{name}: round {number} of {plan.rounds}")

    return run.race(side, os.path.join(folder, f"{name}.db"), plan, progress)


# --- a place to race in ------------------------------------------------------------------------------


@contextmanager
def _folder(keep: str | None) -> Iterator[str]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            yield folder
        return
    try:
        os.makedirs(keep, mode=0o700, exist_ok=True)
        taken = [name for name in os.listdir(keep) if name.startswith(("naive.db", "holdfast.db"))]
    except OSError as error:
        raise errors.StoreUnusable(f"{keep} cannot keep the databases: {error.strerror}.") from error
    if taken:
        raise errors.StoreUnusable(f"{keep} holds {taken[0]} already; name a directory without it.")
    yield os.path.abspath(keep)


@contextmanager
def _tidy_when_ended() -> Iterator[None]:
    """Ended from outside, or its terminal closed: leave by the ordinary way, which cleans up."""
    signals = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = [signal.signal(number, lambda caught, _: sys.exit(128 + caught)) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


# --- telling -----------------------------------------------------------------------------------------


def _shape(both: Both) -> dict[str, Any]:
    return {
        "ok": both.held,
        **both.plan._asdict(),
        "compactors": both.plan.compactors,
        "seconds": round(both.seconds, 3),
        "naive": _side_shape(both.naive),
        "holdfast": {
            **_side_shape(both.holdfast),
            "followed": both.holdfast.followed,
            "violations": list(both.holdfast.violations),
        },
    }


def _side_shape(side: values.Result) -> dict[str, Any]:
    return {
        "acknowledged": len(side.acknowledged),
        "in_log": len(side.logged & set(side.acknowledged)),
        "in_context": len(side.acknowledged) - len(side.lost),
        "lost": len(side.lost),
        "heads": side.heads,
        "forks": side.forks,
        "compactions": side.outcomes,
        "sessions": [
            {"id": place.id, "parent": place.parent, "live": place.live, "messages": len(place.messages)}
            for place in side.places
        ],
    }


def _print(out: console.Console, both: Both) -> None:
    plan = both.plan
    out.prose(
        f"{plan.compactors} processes compact one conversation while {plan.processes - plan.compactors} write to it, "
        f"{safe_text.count(plan.rounds, 'round')}, seed {plan.seed}."
    )
    out.print()
    left = [layout.Line("", "naive tables", ("bold",)), *_lineage(out, both.naive)]
    right = [layout.Line("", "Holdfast", ("bold",)), *_lineage(out, both.holdfast)]
    room = out.width or NARROWEST
    if room >= NARROWEST:
        lines = layout.beside(out, left, right, min(room, 140))
    else:
        lines = [layout.drawn(out, line, room) for line in [*left, layout.Line("", ""), *right]]
    for line in [*lines, "", *_counts(both)]:
        out.print(line)
    out.print()
    _verdict(out, both)


def _lineage(out: console.Console, side: values.Result) -> list[layout.Line]:
    """The tree of sessions; a conversation that never forked is a straight line."""
    children: dict[str | None, list[values.Place]] = {}
    for place in side.places:
        children.setdefault(place.parent, []).append(place)
    nodes: dict[str, layout.Node] = {}
    lost = set(side.lost)
    for place in reversed(side.places):
        below = children.get(place.id, [])
        nodes[place.id] = _place(out, place, lost, [nodes[child.id] for child in below if child.id in nodes])
    if side.forks:
        lines = [line for root in children.get(None, []) for line in layout.tree(nodes[root.id], out.glyphs)]
    else:
        lines = [layout.Line("", nodes[place.id].line, nodes[place.id].style) for place in side.places]
    if len(lines) > MOST_LINES:
        rest = len(lines) - MOST_LINES
        lines[MOST_LINES:] = [layout.Line("", f"{out.glyphs.more} and {safe_text.count(rest, 'more session')}")]
    return lines


def _place(out: console.Console, place: values.Place, lost: set[str], below: list[layout.Node]) -> layout.Node:
    mark = out.glyphs.live if place.live else out.glyphs.ended
    parts = [f"{mark} {place.id}", safe_text.count(len(place.messages), "message")]
    gone = len(place.messages & lost)
    if place.live:
        parts.append("a head")
    if len(below) > 1:
        parts.append("FORKED")
    if gone:
        parts.append(f"{gone} lost")
    bad = gone or len(below) > 1
    return layout.Node("  ".join(parts), below, ("red",) if bad else ("green",) if place.live else ())


def _counts(both: Both) -> list[str]:
    first, second = _side_shape(both.naive), _side_shape(both.holdfast)
    names = {
        "acknowledged": "messages acknowledged",
        "in_log": "still stored",
        "in_context": "known to the model",
        "lost": "lost to the model",
        "heads": "heads",
        "forks": "forks",
    }
    rows = [("", "naive", "Holdfast"), *((name, str(first[key]), str(second[key])) for key, name in names.items())]
    return layout.columns(rows)


def _verdict(out: console.Console, both: Both) -> None:
    side = both.holdfast
    for violation in side.violations:
        out.prose(f"broken: {violation}", "red")
    if not both.held:
        out.print(out.style("The store did not keep its promises.", "red"))
        return
    refused = side.outcomes.get("refused", 0) + side.outcomes.get("busy", 0)
    out.prose(
        f"On the store {safe_text.count(side.outcomes['committed'], 'compaction')} committed, {refused} stood back or "
        f"were refused, and {safe_text.count(side.followed, 'message')} written to an ended session went to the "
        "head instead."
    )
    out.print(out.style(f"One head, nothing lost. It took {both.seconds:.1f} s.", "green"))
