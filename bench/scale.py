"""The sizes of a run: full, or just large enough to check that every figure can be measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    warm_up: int = 2_000
    """Appends before the measurement: the floor is faster while its WAL still grows."""
    appends: int = 2_000
    block: int = 200
    """Consecutive appends of one system."""
    load: int = 2_220
    load_rounds: int = 60
    sizes: tuple[int, ...] = (1_000, 100_000, 1_000_000)
    """Messages in the log when a compaction is committed."""
    history_rounds: int = 150
    pasts: tuple[int, ...] = (1, 100, 1_000)
    """Earlier compactions when the context is read."""
    processes: int = 8
    seconds: float = 3.0
    writer_rounds: int = 3
    rate: int = 100
    """Appends per second of each process, in the open loop."""
    shared_processes: int = 4
    shared_appends: int = 100
    tasks: int = 32
    group_rounds: int = 7
    group_appends: int = 20
    fire_rounds: int = 5
    search_some: int = 6_000
    search_many: int = 100_000
    search_questions: int = 200
    turns: int = 200
    turn_log: int = 10_000
    """Messages in the log of the longer conversation."""
    extracted: int = 1_000
    """Messages of about 160 tokens in the window of which an extractive summary is made during the turns."""
    starts: int = 25
    editors: int = 11
    """How often each agent for editors is started."""
    opens: int = 25
    hints: int = 200
    """Writes that another process is notified of."""
    notify_writers: int = 8
    pg_processes: int = 8
    pg_warm_up: int = 200
    pg_appends: int = 1_500
    pg_sizes: tuple[int, ...] = (1_000, 100_000)
    pg_search: tuple[int, int] = (6_000, 100_000)
    pg_copied: int = 20_000
    screens: int = 7
    """How often the full screen is opened."""
    screen_log: int = 10_000
    chats: int = 1_000
    chat_rate: int = 150
    """Inbound messages per second, over all chats."""
    chat_seconds: float = 10.0
    chat_rounds: int = 100
    """Messages sent one by one, without and during a flood of three times as many."""
    platform_users: int = 25
    platform_messages: int = 100
    """Messages of these users, one at a time; then twice as many at once."""


FULL = Scale()
QUICK = Scale(
    search_some=1_000,
    search_many=1_500,
    search_questions=5,
    warm_up=50,
    appends=50,
    block=10,
    load=220,
    load_rounds=3,
    sizes=(200, 1_000),
    history_rounds=5,
    pasts=(1, 5, 20),
    processes=3,
    seconds=0.1,
    writer_rounds=1,
    shared_processes=3,
    shared_appends=10,
    group_rounds=1,
    group_appends=3,
    turns=3,
    turn_log=100,
    extracted=100,
    starts=2,
    editors=1,
    opens=3,
    hints=5,
    notify_writers=2,
    pg_processes=2,
    pg_warm_up=10,
    pg_appends=50,
    pg_sizes=(50, 100),
    pg_search=(100, 150),
    pg_copied=100,
    screens=1,
    screen_log=200,
    chats=5,
    chat_rate=50,
    chat_seconds=0.1,
    chat_rounds=5,
    platform_users=2,
    platform_messages=3,
)
