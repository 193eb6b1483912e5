"""The hints of one PostgreSQL driver: those it sends, and those it hears. Its own it does not hear."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from holdfast.store import notifications
from holdfast.store.postgres import listener as postgres_listener
from holdfast.store.postgres import notifier

Execute = Callable[..., Any]
Opened = Callable[[], AbstractContextManager[Execute]]
Asking = Callable[[], AbstractContextManager[Execute | None]]


class Exchange:
    """`opened` gives a way to execute SQL for a moment, `connect` a connection to keep; `asking` a way to ask that
    gives up soon, or None when there is none just now."""

    def __init__(
        self, opened: Opened, asking: Asking, connect: Callable[[], Any], translating: postgres_listener.Translating
    ) -> None:
        self._opened, self._asking, self._connect, self._translating = opened, asking, connect, translating
        self._nonce = os.urandom(8).hex()
        self._listeners: list[postgres_listener.Listener] = []
        self._notifier = notifier.Notifier(self._listened, self._send)

    def tell(self, told: Iterable[notifications.Hint]) -> None:
        """Of what was just committed; never raises, and waits for nothing but a short question now and then."""
        self._notifier.tell(told)

    def listen(self, heard: Callable[[notifications.Hint], None]) -> None:
        self._listeners.append(postgres_listener.Listener(self._connect, self._translating, self._nonce, heard))

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._notifier.close()

    def _listened(self) -> bool | None:
        with self._asking() as execute:
            return None if execute is None else bool(execute(notifier.ASK).fetchone()[0])

    def _send(self, told: list[notifications.Hint]) -> None:
        with self._opened() as execute:
            execute(notifier.SEND, {"payloads": notifications.written(told, self._nonce)})
