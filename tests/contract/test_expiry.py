"""What is over long since is forgotten, a few at a time; what is not stays, whatever it is."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors
from holdfast.store.mail import expiry
from tests.contract import mail, steps


def tidied(db: SessionDB, days: float = 30) -> list[int]:
    """How much each step forgot."""
    window: expiry.Window | None = expiry.Window()
    gone = list[int]()
    while window is not None:
        done = expiry.step(db, days, window)
        gone.append(done.gone)
        window = done.then
    assert db.fsck().ok
    return gone


@pytest.mark.parametrize(("most", "rounds"), [(500, 1), (1, 2)])
def test_what_was_settled_long_ago_is_forgotten_however_little_is_looked_at_at_once(
    db: SessionDB, clock: steps.Clock, monkeypatch: pytest.MonkeyPatch, most: int, rounds: int
) -> None:
    monkeypatch.setattr(expiry, "MOST", most)
    a, b = mail.came(db, "a", "b")
    claim = db.claim(mail.CLAIM)
    db.begin_arrival(claim, a.id, "talk", [b.id])
    where = {"seq": mail.said(db, "talk", "a"), "conversation_id": "talk"}
    db.settle_arrival(claim, a.id, "answered", outgoing=[mail.reply()], release=True, **where)
    unsent, last = (mail.answered(db, "talk", key) for key in ("unsent", "last"))
    (waiting,) = mail.came(db, "waiting")
    posted, pending = db.post(mail.reply(), key="posted"), db.post(mail.reply(), key="pending")
    for sent in (*db.replies(a.id), *db.replies(last.id), posted):
        db.delivered(sent.id, "there")
    assert sum(tidied(db)) == 0
    clock.advance(31 * steps.DAY)
    (young,) = mail.came(db, "young")
    db.settle_arrival(None, young.id, "ignored")
    # One that others were joined into goes after them: where they are looked at apart, the next time.
    assert sum(sum(tidied(db)) for _ in range(rounds)) == 4
    assert sum(tidied(db)) == 0
    assert [db.arrival(each.id) for each in (a, b)] == [None, None]
    assert all(db.arrival(each.id) for each in (unsent, last, waiting, young))
    assert [db.outgoing(each.id) is None for each in (posted, pending)] == [True, False]
    assert [len(db.replies(each.id)) for each in (unsent, last)] == [1, 1]
    assert db.arrive(mail.new("a"))[1]
    assert not db.arrive(mail.new("last"))[1]


def test_no_step_looks_at_more_than_a_few(db: SessionDB, clock: steps.Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "MOST", 4)
    for arrival in mail.came(db, *map(str, range(10))):
        db.settle_arrival(None, arrival.id, "ignored", outgoing=[mail.reply()])
        db.send_failed(db.replies(arrival.id)[0].id, "gone")
    clock.advance(31 * steps.DAY)
    assert [each for each in tidied(db) if each] == [8, 8, 4]


def test_strangers_who_never_came_again_are_forgotten(db: SessionDB, clock: steps.Clock) -> None:
    assert db.strangers_told("far", "eve")
    tidied(db)
    assert not db.strangers_told("far", "eve")
    clock.advance(31 * steps.DAY)
    tidied(db)
    assert db.strangers_told("far", "eve")


def test_days_are_a_number(db: SessionDB) -> None:
    for wrong in (-1, float("nan"), True, "30"):
        with pytest.raises(errors.InvalidArgument):
            expiry.step(db, wrong)  # type: ignore[arg-type]
