"""Appends of many callers that share one commit. What one of them did wrong fails that one only, and what is held by
somebody else holds up nobody who has nothing to do with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast import errors, types
from holdfast.store import conversation_row, log
from holdfast.store.driver import Asked, Row, Tx


class Held(NamedTuple):
    """Nothing was written: somebody else has the conversation; or else what one of those has that came with it."""

    certain: bool


Outcome = list[types.Receipt] | BaseException | Held


class Together:
    """A step made of several, which waits for all they need; it may run again."""

    def __init__(self, steps: Sequence[log.Append]) -> None:
        self._steps = steps

    def __call__(self, tx: Tx) -> list[Outcome]:
        if len(self._steps) == 1:
            return [self._steps[0](tx)]
        away = self._locked(tx, [step.session_id for step in self._steps])
        return [Held(True) if step.session_id in away else _tried(tx, step) for step in self._steps]

    def _locked(self, tx: Tx, session_ids: list[str]) -> set[str]:
        """Their conversations; which of the ids name one that could not be had."""
        conversation_row.lock_all(tx, session_ids)
        return set()

    def plain(self) -> Asked | None:
        return log.several(self._steps) if len(self._steps) > 1 else self._steps[0].plain()

    def answered(self, row: Row) -> list[Outcome]:
        if len(self._steps) == 1:
            return [self._steps[0].answered(row)]
        heads = {key: (epoch, head_id) for key, epoch, head_id in zip(*row, strict=True)}
        return [self._receipts(step, heads) for step in self._steps]

    def _receipts(self, step: log.Append, heads: dict[int, tuple[int, str]]) -> Outcome:
        assert step.tip is not None  # there was something to ask
        place, last = step.tip.place, step.tip.last_seq + len(step.messages)
        epoch, head_id = heads[place.key]
        return step.written(place._replace(head_id=head_id), last, epoch)


class Passing(Together):
    """The same, without waiting: those whose conversation somebody else has are left out."""

    def _locked(self, tx: Tx, session_ids: list[str]) -> set[str]:
        return conversation_row.lock_unheld(tx, session_ids)

    def held(self) -> list[Outcome]:
        return [Held(len(self._steps) == 1)] * len(self._steps)

    def plain(self) -> Asked | None:
        asked = super().plain()
        return None if asked is not None and asked.shared else asked


def _tried(tx: Tx, step: log.Append) -> Outcome:
    try:
        with tx.savepoint():
            return step(tx)
    except errors.StoreError:
        raise
    except errors.HoldfastError as error:
        return error
