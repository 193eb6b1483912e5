"""What the racers are told and what they tell, on either side of the race. Plain values, cheap to send.

A round has four steps, and each begins only when every process has finished the one before:

talk    appenders look up where the conversation goes on, and write there
read    compactors look at the conversation and make their summaries
during  appenders write while the summaries are being made
commit  all compactors commit at once, and appenders go on writing meanwhile

An appender keeps, for the whole round, the session it saw in `talk`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, Protocol

Role = Literal["appender", "compactor"]
Step = Literal["talk", "read", "during", "commit"]
STEPS: tuple[Step, ...] = ("talk", "read", "during", "commit")

FIRST = "start"
KEPT = 3
"""How many of the newest messages a compaction leaves as they are."""


class Order(NamedTuple):
    """One step of one racer: which round it is, and how many messages to write."""

    step: Step
    round: int
    messages: int


class Answer(NamedTuple):
    """What a racer did: the messages acknowledged to it, and how its compaction went, if it tried one."""

    acknowledged: tuple[str, ...] = ()
    followed: int = 0
    """Messages written to a session that had been superseded, and stored at the head all the same."""
    outcome: str = ""


class Racer(Protocol):
    """One process's part in the race."""

    def take(self, order: Order) -> Answer: ...
    def close(self) -> None: ...


class Place(NamedTuple):
    """A session as it stands in the database after the race."""

    id: str
    parent: str | None
    live: bool
    messages: frozenset[str]


class Result(NamedTuple):
    """One side after the race: what was acknowledged, and what its database has of it."""

    acknowledged: tuple[str, ...]
    logged: frozenset[str]
    known: frozenset[str]
    places: list[Place]
    outcomes: dict[str, int]
    followed: int = 0
    violations: tuple[str, ...] = ()

    @property
    def lost(self) -> list[str]:
        """Acknowledged, and the model will never hear of it."""
        return [label for label in self.acknowledged if label not in self.known]

    @property
    def heads(self) -> int:
        return sum(place.live for place in self.places)

    @property
    def forks(self) -> int:
        """Sessions with more than one continuation."""
        parents = [place.parent for place in self.places if place.parent is not None]
        return sum(parents.count(parent) > 1 for parent in set(parents))


class Side(Protocol):
    """A module of this folder that plays one side."""

    def create(self, path: str) -> None: ...
    def racer(self, path: str, role: Role, name: str, number: int) -> Racer: ...
    def measured(self, path: str, acknowledged: tuple[str, ...], answers: list[Answer]) -> Result: ...


def label(name: str, number: int) -> str:
    """A message's text is its label, so that what became of it can be measured."""
    return f"{name}.{number}"


def summary(texts: Iterable[str]) -> str:
    """The summarizer of both sides: it forgets nothing it was given, so whatever is missing was never given to it."""
    return " ".join(texts)


def words(texts: Iterable[str]) -> frozenset[str]:
    """Every label found in a context, in a message of its own or in a summary."""
    return frozenset(word for text in texts for word in text.split())
