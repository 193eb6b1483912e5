"""Broken off between any two steps, by whatever goes wrong there: one outcome, one reply, in the same chat."""

from __future__ import annotations

import pytest

from holdfast import AsyncSessionDB, errors, fault_points
from holdfast.gateway import commands, notices, outbox, router
from holdfast.model import ScriptedModel
from tests.support import gateways
from tests.support.agents import shape

STEPS = ["claimed", "begun", "answered", "settled", "sending", "sent"]
TAKING = ["begin.begun", "begin.claim_acquire", "begin.committing"]
WRITES = [*TAKING, "settle.begun", "settle.committing", "settle.committed", "send.begun"]
ENDS = ["delivered.begun", "delivered.committed", "acquire.begun", "append.committing", "append.committed"]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "MIN_PAUSE", 0.01)
    monkeypatch.setattr(router, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(outbox, "MIN_RETRY", 0.01)
    monkeypatch.setattr(outbox, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(notices, "RETRY_SECONDS", 0.05)


class Once:
    """Something that goes wrong the first time a point is reached."""

    def __init__(self, point: str, error: Exception) -> None:
        self._point, self._error = point, error
        self.went_wrong = False

    def __call__(self, point: str) -> None:
        if point == self._point and not self.went_wrong:
            self.went_wrong = True
            raise self._error


@pytest.mark.parametrize("error", [RuntimeError("a bug"), errors.StoreFull()], ids=["bug", "full"])
@pytest.mark.parametrize("point", [*(f"gateway.{step}" for step in STEPS), *WRITES, *ENDS])
async def test_a_message_has_one_outcome_and_one_reply(
    point: str, error: Exception, monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    wrong = Once(point, error)
    async with gateways.open_gateway(db, ScriptedModel(["Yes."] * 9)) as (opened, chat):
        await chat.say("Before", key="0")
        await gateways.settled(db, "0")
        await gateways.quiet(opened, db)
        monkeypatch.setattr(fault_points, "hook", wrong)
        await chat.say("Hi", key="1")
        (found,) = await gateways.settled(db, "1")
        await gateways.quiet(opened, db)
        monkeypatch.setattr(fault_points, "hook", None)
        sent = [each for each in chat.sent if each.inbound_id == found.id]
    assert wrong.went_wrong
    assert (found.seq, [each.address for each in sent]) == (3, [{"chat": "local"}])
    assert (await db.mail.replies(found.id))[0].text == sent[0].text
    said = [role for role, _ in shape(await db.transcript(found.conversation_id or ""))]
    assert said.count("user") == 2


@pytest.mark.parametrize("step", ["claimed", "begun", "commanded", "settled"])
async def test_a_command_is_carried_out_at_most_once(
    step: str, monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    wrong = Once(f"gateway.{step}", RuntimeError("a bug"))
    async with gateways.open_gateway(db, ScriptedModel(["Yes."] * 9)) as (opened, chat):
        await chat.say("Before", key="0")
        await gateways.settled(db, "0")
        await gateways.quiet(opened, db)
        monkeypatch.setattr(fault_points, "hook", wrong)
        await chat.say("/branch", key="1")
        (found,) = await gateways.settled(db, "1")
        await gateways.quiet(opened, db)
        monkeypatch.setattr(fault_points, "hook", None)
        (said,) = [each.text for each in chat.sent if each.inbound_id == found.id]
    done = len(await db.list_sessions(owner="loopback:local")) - 1
    assert wrong.went_wrong
    assert (done, said == commands.NOT_REPEATED.format(line="/branch")) in ((1, False), (0, True))
