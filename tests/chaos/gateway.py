"""The long fault runs of gateways: killed at every step between receipt and delivery, alone and beside another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.chaos.run import Run, Wrong
from tests.faults import gateway_processes, zygote
from tests.support import postgres

SOME = 10
# Besides the steps of the gateway itself: every point of the store once, and two gateways at once.
STORE, PAIRS = "store", "pairs"


def in_file(run: Run) -> Iterator[str]:
    """Gateways on a file."""
    return _kill(run, _file)


def in_server(run: Run) -> Iterator[str]:
    """Gateways on a server."""
    return _kill(run, _schema)


@contextmanager
def _file(folder: Path) -> Iterator[str]:
    yield str(folder / "store.db")


@contextmanager
def _schema(_: Path) -> Iterator[str]:
    address = postgres.fresh()
    yield address
    postgres.give_back(address)


def _kill(run: Run, stored: Callable[[Path], AbstractContextManager[str]]) -> Iterator[str]:
    """Some kills at each step, in a store of its own, until there were as many as there are to be."""
    count = 0
    for turn in range(0, run.kills, SOME):
        for step in run.chance.sample([*gateway_processes.POINTS, STORE, PAIRS], len(gateway_processes.POINTS) + 2):
            if not run.goes_on():
                return
            with zygote.folder() as made, stored(Path(made)) as target:
                story = gateway_processes.Story(run.zygote, target, Path(made, "sends"), run.chance)
                try:
                    _play(story, step, min(SOME, run.kills - turn))
                    yield from (Wrong(f"{step}: {wrong}") for wrong in story.wrongs())
                except AssertionError as error:
                    yield Wrong(f"{step}: {error}")
                count += story.deaths
            yield f"{count:,} gateways killed ({turn + SOME} at each step)"


def _play(story: gateway_processes.Story, step: str, kills: int) -> None:
    if step == STORE:
        for _ in gateway_processes.kill_everywhere(story, 1):
            pass
    elif step == PAIRS:
        for _ in range(kills):
            point = f"gateway.{story.chance.choice(gateway_processes.POINTS)}"
            gateway_processes.kill_one_of_two(story, point, len(gateway_processes.NAMES))
    else:
        gateway_processes.kill_at(story, f"gateway.{step}", kills, len(gateway_processes.NAMES))
    story.live()


PARTS: dict[str, Callable[[Run], Iterator[str]]] = {"gateway": in_file, "postgres-gateway": in_server}
