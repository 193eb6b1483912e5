"""The long fault runs of gateways: killed at every step between receipt and delivery, alone and beside another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tests.chaos.run import Run, Wrong
from tests.faults import gateway_processes as gateways

SOME = 10
# Besides the steps of the gateway itself: every point of the store once, and two gateways at once.
STORE, PAIRS = "store", "pairs"


def kill(run: Run, dialect: str) -> Iterator[str]:
    """Some kills at each step, in a store of its own, until there were as many as there are to be."""
    count = 0
    for turn in range(0, run.kills, SOME):
        for step in run.chance.sample([*gateways.POINTS, STORE, PAIRS], len(gateways.POINTS) + 2):
            if not run.goes_on():
                return
            with run.new_store(dialect) as target:
                sends = run.folder / f"sends {count}"
                story = gateways.Story(run.zygote, target, sends, run.chance)
                try:
                    _play(story, step, min(SOME, run.kills - turn))
                    yield from (Wrong(f"{step}: {wrong}") for wrong in story.wrongs())
                except AssertionError as error:
                    yield Wrong(f"{step}: {error}")
                count += story.deaths
                sends.unlink(missing_ok=True)
            yield f"{count:,} gateways killed ({turn + SOME} at each step)"


def _play(story: gateways.Story, step: str, kills: int) -> None:
    if step == STORE:
        for _ in gateways.kill_everywhere(story, 1):
            pass
    elif step == PAIRS:
        for _ in range(kills):
            point = f"gateway.{story.chance.choice(gateways.POINTS)}"
            gateways.kill_one_of_two(story, point, len(gateways.NAMES))
    else:
        gateways.kill_at(story, f"gateway.{step}", kills, len(gateways.NAMES))
    story.run()


PARTS: dict[str, Callable[[Run], Iterator[str]]] = {
    "gateway": partial(kill, dialect="sqlite"),
    "postgres-gateway": partial(kill, dialect="postgres"),
}
