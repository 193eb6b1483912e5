"""Claims: one holder at a time, a token that only grows, taken over from the dead and the late."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from holdfast import SessionDB, errors, types
from tests.support import conversations, mail

MakeDb = Callable[..., SessionDB]


def test_lease_has_one_holder_until_it_is_released(db: SessionDB) -> None:
    claim = db.mail.acquire_chat_lease("k", 30.0, "me")
    with pytest.raises(errors.Busy) as busy:
        db.mail.acquire_chat_lease("k", 30.0, "other")
    assert (busy.value.holder, busy.value.expires_in) == ("me", 30.0)
    assert db.mail.acquire_chat_lease("another", 30.0, "other").token == claim.token
    assert db.mail.release_chat_lease(claim)
    assert not db.mail.release_chat_lease(claim)
    taken = db.mail.acquire_chat_lease("k", 30.0, "other")
    assert taken.token == claim.token + 1
    with pytest.raises(errors.LeaseLost):
        db.mail.renew_chat_lease(claim)


def test_expired_lease_is_taken_over_and_cannot_be_renewed(db: SessionDB, clock: conversations.Clock) -> None:
    late = db.mail.acquire_chat_lease("k", 30.0, "me")
    clock.advance(29)
    db.mail.renew_chat_lease(late)
    clock.advance(29)
    with pytest.raises(errors.Busy):
        db.mail.acquire_chat_lease("k", 30.0, "other")
    clock.advance(1)
    assert [(held.holder, held.state) for held in db.mail.chat_leases()] == [("me", "expired")]
    taken = db.mail.acquire_chat_lease("k", 30.0, "other")
    with pytest.raises(errors.LeaseLost):
        db.mail.renew_chat_lease(late)
    assert taken.token == late.token + 1
    assert not db.mail.release_chat_lease(late)
    assert [(held.key, held.token, held.holder, held.expires_in, held.state) for held in db.mail.chat_leases()] == [
        ("k", taken.token, "other", 30.0, "held")
    ]


def test_expired_lease_is_held_until_it_is_taken_over(db: SessionDB, clock: conversations.Clock) -> None:
    late = db.mail.acquire_chat_lease("k", 30.0, "me")
    clock.advance(60)
    db.mail.renew_chat_lease(late)
    with pytest.raises(errors.Busy):
        db.mail.acquire_chat_lease("k", 30.0, "other")


def test_acquiring_again_voids_the_old_token(db: SessionDB) -> None:
    old = db.mail.acquire_chat_lease("k", 30.0, "me")
    new = db.mail.acquire_chat_lease("k", 30.0, "me")
    assert new.token == old.token + 1
    with pytest.raises(errors.LeaseLost):
        db.mail.renew_chat_lease(old)
    db.mail.renew_chat_lease(new)


def test_concurrent_acquisitions_have_one_winner(make_db: MakeDb) -> None:
    stores = [make_db() for _ in range(4)]
    for round_ in range(15):
        found = conversations.at_once(*(partial(db.mail.acquire_chat_lease, f"k{round_ % 3}") for db in stores))
        won = [claim for claim in found if isinstance(claim, types.ChatLease)]
        assert len(won) == 1
        assert all(isinstance(other, errors.Busy) for other in found if other is not won[0])
        assert won[0].token == (1 << 32) + 1 + round_ // 3
        assert stores[0].mail.release_chat_lease(won[0])


def test_lease_of_a_dead_holder_is_taken_over_at_once(make_db: MakeDb) -> None:
    db = make_db()
    address = db.driver.target if hasattr(db.driver, "target") else db.driver.path
    code = "import sys; from holdfast import SessionDB; from tests.support import conversations; "
    code += "SessionDB(sys.argv[1], clock=conversations.Clock()).mail.acquire_chat_lease('k', 30.0, 'elsewhere')"
    subprocess.run([sys.executable, "-c", code, address], check=True)
    assert [held.state for held in db.mail.chat_leases()] == ["dead"]
    assert db.mail.acquire_chat_lease("k", 30.0, "me").token == (1 << 32) + 2


@pytest.mark.parametrize("given", [("", 30.0, None), ("k", 0, None), ("k", 30.0, ""), ("a\nb", 30.0, None),
                                   ("k", True, None), ("x" * 601, 30.0, None), (5, 30.0, None)])  # fmt: skip
def test_invalid_lease_is_refused(db: SessionDB, given: tuple[object, ...]) -> None:
    with pytest.raises(errors.InvalidArgument):
        db.mail.acquire_chat_lease(*given)  # type: ignore[arg-type]
    for call in (db.mail.renew_chat_lease, db.mail.release_chat_lease):
        with pytest.raises(errors.InvalidArgument):
            call("k")  # type: ignore[arg-type]
    assert db.mail.chat_leases() == []


def test_restore_voids_all_leases(make_file_db: MakeDb, tmp_path: object) -> None:
    db = make_file_db()
    before = db.mail.acquire_chat_lease("k", 30.0, "me")
    path = f"{tmp_path}/copy.db"
    db.admin.backup(path)
    db.mail.acquire_chat_lease("new", 30.0, "me")
    db.admin.restore(path)
    assert db.mail.chat_leases() == []
    with pytest.raises(errors.LeaseLost):
        db.mail.renew_chat_lease(before)
    for key in ("k", "new"):
        assert db.mail.acquire_chat_lease(key, 30.0, "me").token > 2 << 32


def test_token_of_another_holder_writes_nothing(db: SessionDB) -> None:
    """A power loss may undo an acquisition, after which another holder gets the same token."""
    (arrival,) = mail.came(db, "1")
    lease = db.mail.acquire_chat_lease(mail.CLAIM, holder='a "b" \\ ü')
    undone = msgspec.structs.replace(lease, holder="a")
    post = db.mail.post(mail.reply())
    with mail.nothing_changes(db):
        for call in (
            lambda: db.mail.renew_chat_lease(undone),
            lambda: db.mail.begin_inbound(undone, arrival.id, "talk"),
            lambda: db.mail.settle_inbound(undone, arrival.id, "answered", outgoing=[mail.reply()], release=True),
            lambda: db.mail.begin_sending(undone, post.id),
        ):
            with pytest.raises(errors.LeaseLost):
                call()
        assert not db.mail.release_chat_lease(undone)
    db.mail.renew_chat_lease(lease)
    assert db.mail.settle_inbound(lease, arrival.id, "answered", outgoing=[mail.reply()], release=True)
    assert db.mail.chat_leases() == []
