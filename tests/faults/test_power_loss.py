"""The plug pulled after any write: with the default durability every acknowledged message is still there.

With the other one, which says so by its name, the newest may be gone, and nothing but the newest.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.faults import checker, power
from tests.faults import zygote as zygotes


def _lived(durability: str, zygote: zygotes.Zygote, place: Path, **how: int) -> Path:
    notes = place / "notes"
    args = {"durability": durability, "notes": str(notes), **how}
    assert zygote.run(power.live, place / "store.db", args).error is None
    return notes


def test_acknowledged_messages_survive_power_loss(zygote: zygotes.Zygote, place: Path) -> None:
    notes, count = _lived("power-loss", zygote, place), 0
    for moment in power.moments(notes, random.Random(2)):
        count += 1
        assert power.wrong(moment, place / "disk") == []
    assert count > 150


def test_weaker_durability_loses_only_the_newest(zygote: zygotes.Zygote, place: Path) -> None:
    notes, lost = _lived("process-crash", zygote, place), 0
    everything = [f"{life}.{number}" for life in range(2) for number in range(power.LIFE)]
    for count, moment in enumerate(power.moments(notes, random.Random(1))):
        with power.opened(moment, place / str(count)) as db:
            found = [message.uid for message in db.transcript("c")] if db.get_session("c") else []
            assert found == everything[: len(found)], moment.number
            assert checker.verify(db, also=["c"] if found else []) == [], moment.number
            lost += len(found) < sum(not uid.startswith("compacted ") for uid in moment.acknowledged)
    # Else this would not have been the weaker one.
    assert lost > 0


def test_sync_that_failed_once_costs_nothing_acknowledged_later(zygote: zygotes.Zygote, place: Path) -> None:
    """The disk says no, and then yes: what it lost meanwhile must not lie under what is acknowledged next."""
    holes = 0
    for hole in range(0, 400, 7):
        lived = place / f"lived{hole}"
        lived.mkdir(mode=0o700)
        moment = power.last_moment(_lived("power-loss", zygote, lived, hole=hole))
        with power.opened(moment, place / f"after{hole}") as db:
            found = {message.uid for message in db.transcript("c")}
            assert {uid for uid in moment.acknowledged if not uid.startswith("compacted ")} <= found, hole
            assert checker.verify(db, also=["c"]) == [], hole
        holes += 1
    assert holes > 50
