"""Tidying: what came in and went out long ago is forgotten, a little at a time, beside the work.

`forget_inbound` does it at once. Whoever runs for months does it here: each step is one short transaction over the
next few that came in, so that nobody who writes meanwhile waits for more than that.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast import errors
from holdfast.store import store_meta, validation
from holdfast.store.driver import Tx
from holdfast.store.facet import Facet

MOST = 500
"""How many one step looks at."""


class Window(NamedTuple):
    """Where a step begins, and what it looks at: what came in, or what was sent by itself."""

    after: int = 0
    posted: bool = False


class Tidied(NamedTuple):
    """How many arrivals and messages one step forgot, and where the next one begins; None: there is none."""

    gone: int
    then: Window | None


class Expiry(Facet):
    """The method of `db.mail` that forgets old mail in short steps."""

    def expire(self, days: float, window: Window | None = None) -> Tidied:
        """Delete a batch of mail that was settled or sent more than `days` ago, and return where the next batch begins.

        Open mail stays, and so does the address from which a conversation was last spoken to.
        """
        if window is not None and not isinstance(window, Window):
            raise errors.InvalidArgument("`window` must be a Window, or None for the first.")
        validation.check(validation.Duration, days=days)
        now, begun = self._clock(), window or Window()
        before = now - days * 86_400
        work = _posted if begun.posted else _arrivals
        # Nothing waits for it to be on the disk: what is forgotten once more is forgotten.
        return self.driver.write("tidy", lambda tx: work(tx, begun.after, before, now), durable=False)


def _arrivals(tx: Tx, after: int, before: float, now: float) -> Tidied:
    upto, oldest = tx.one("tidy_window", after=after, most=MOST) or (None, None)
    if upto is None or oldest >= before:
        tx.run("strangers_forget", before=before)
        return Tidied(0, Window(posted=True))
    gone = tx.run("tidy_outgoing", after=after, upto=upto, before=before)
    # What was joined goes before what it was joined into.
    while count := tx.run("tidy_arrivals", after=after, upto=upto, before=before):
        gone += count
    return _noted(tx, gone, now, Window(upto))


def _posted(tx: Tx, after: int, before: float, now: float) -> Tidied:
    upto, oldest = tx.one("tidy_posted_window", after=after, most=MOST) or (None, None)
    if upto is None or oldest >= before:
        return Tidied(0, None)
    gone = tx.run("tidy_posted", after=after, upto=upto, before=before)
    return _noted(tx, gone, now, Window(upto, posted=True))


def _noted(tx: Tx, gone: int, now: float, then: Window) -> Tidied:
    # The files may still hold the words of what is gone.
    if gone:
        tx.run("meta_set", key=store_meta.FORGOTTEN, value=repr(now))
    return Tidied(gone, then)
