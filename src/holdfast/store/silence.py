"""Noticing a server that says nothing any more.

A server that is stopped, or behind a network that swallows what is sent, keeps its connections open: a client that
waits for an answer would wait for ever, and a limit kept by the server does not end that. So whoever has heard
nothing for a while asks on a new connection whether anybody is there. A statement that only takes long goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

AWAY = "it does not answer"
# Whether the server still works for us: yes; no, as nobody is there; or it has answered, and nothing came here.
WORKING, GONE, UNHEARD = "working", "gone", "unheard"
# An answer may be on its way while we ask.
_ON_ITS_WAY = 1.0

Waiting = Generator[Any, Any, Any]


def watched(
    wait: Callable[..., Any], ask: Callable[[], str], lost: Callable[[], Exception], patience: float
) -> Callable[..., Any]:
    """A connection's own way to wait, with somebody who looks at the clock. `lost` gives up the connection."""

    def waiting(work: Waiting, *more: Any, **how: Any) -> Any:
        return wait(_listening(work, ask, lost, patience), *more, **how)

    return waiting


def _listening(work: Waiting, ask: Callable[[], str], lost: Callable[[], Exception], patience: float) -> Waiting:
    """Passes on all there is between a waiting piece of work and the loop that waits for it."""
    until, unheard = 0.0, False
    try:
        wants = next(work)
        while True:
            ready = yield wants
            if ready:
                until = 0.0
            elif not until:
                until, unheard = time.monotonic() + patience, False
            elif time.monotonic() > until:
                found = ask()
                if found == GONE or (found == UNHEARD and unheard):
                    raise lost()
                unheard = found == UNHEARD
                until = time.monotonic() + (_ON_ITS_WAY if unheard else patience)
            wants = work.send(ready)
    except StopIteration as end:
        return end.value
