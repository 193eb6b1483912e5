"""Power lost after any write: with the default durability all that was acknowledged is still there, be it a
message, a compaction, what came in from outside, what became of it or that the reply to it was delivered. Claims,
leases and beginnings may be forgotten; an old holder cannot write when another process has the lease."""

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


def test_acknowledged_writes_survive_power_loss_and_old_tokens_write_nothing(
    zygote: zygotes.Zygote, place: Path
) -> None:
    notes, count = _lived("power-loss", zygote, place), 0
    for moment in power.moments(notes, random.Random(2)):
        count += 1
        power.check(moment, place / "disk")
    assert count > 150


def test_weaker_durability_loses_only_the_newest(zygote: zygotes.Zygote, place: Path) -> None:
    notes, lost = _lived("process-crash", zygote, place), 0
    everything = list(power.moments(notes, None))[-1].noted("said")
    for count, moment in enumerate(power.moments(notes, random.Random(1), every=3)):
        with power.opened(moment, place / str(count)) as db:
            found = [message.uid for message in db.transcript("c")] if db.get_session("c") else []
            assert found == everything[: len(found)], moment.number
            assert checker.verify(db, also=["c"] if found else []) == [], moment.number
            lost += len(found) < len(moment.noted("said"))
    # Else this would not have been the weaker one.
    assert lost > 0


def test_sync_that_failed_once_costs_nothing_acknowledged_later(zygote: zygotes.Zygote, place: Path) -> None:
    """A sync fails, and the next one succeeds: later acknowledged writes must not depend on the lost ones."""
    healthy = place / "healthy"
    healthy.mkdir(mode=0o700)
    holes = power.syncs_of_the_log(_lived("power-loss", zygote, healthy))
    for hole in holes:
        lived = place / f"lived{hole}"
        lived.mkdir(mode=0o700)
        moment = power.last_moment(_lived("power-loss", zygote, lived, hole=hole))
        with power.opened(moment, place / f"after{hole}") as db:
            found = {message.uid for message in db.transcript("c")}
            assert set(moment.noted("said")) <= found, hole
            assert checker.verify(db, also=["c"]) == [], hole
    assert len(holes) > 15
