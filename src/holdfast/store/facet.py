"""The base class of SessionDB's facets, such as `db.mail` and `db.memory`."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.store.driver import Driver


class Facet:
    """A group of related methods on one database. Each method is one short transaction."""

    def __init__(self, driver: Driver, clock: Callable[[], float]) -> None:
        self.driver = driver
        self._clock = clock
