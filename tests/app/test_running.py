"""What runs beside the work: the store is looked after, and what cannot be done for it is said."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SessionDB, config
from holdfast.app import running
from holdfast.store import schedule

PATIENCE = 60


def settings(home: Path) -> config.Settings:
    return config.Settings(
        home=str(home),
        database=str(home / "store.db"),
        colour=False,
        columns=None,
        model="offline",
        backup=config.Backup(folder=str(home / "copies")),
    )


def note(home: Path, key: str, value: str) -> None:
    with SessionDB(home / "store.db") as db:
        db.driver.write("meta", lambda tx: tx.run("meta_set", key=key, value=value))


def notice(home: Path) -> str | None:
    async def start() -> str | None:
        async with running.started(settings(home)) as app:
            return app.notice

    return asyncio.run(start())


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (schedule.DONE, "1000000.0", "overdue"),
        (schedule.FAILED, "1000000.0", "failed"),
        (schedule.DONE, "now", None),
    ],
)
def test_who_opens_a_chat_hears_of_backups_that_do_not_come(
    tmp_path: Path, key: str, value: str, says: str | None
) -> None:
    note(tmp_path, key, repr(time.time()) if value == "now" else value)
    told = notice(tmp_path)
    assert told is None if says is None else says in str(told)
    assert says is None or "`holdfast backup`" in str(told)


def test_first_start_has_nothing_to_say_of_backups(tmp_path: Path) -> None:
    assert notice(tmp_path) is None


def test_attachments_nobody_names_are_collected_though_no_backup_can_be_made(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "store.db", clock=lambda: 1_000_000.0) as db:
        blob = db.put_blob(b"left over")
    (tmp_path / "copies").touch()

    async def start() -> None:
        async with running.started(settings(tmp_path)) as app:
            with SessionDB(tmp_path / "store.db") as db:
                await until(lambda: db.get_blob(blob.digest) is None and db.meta(schedule.FAILED) is not None)
            assert app.notice is None

    asyncio.run(start())


def test_backup_that_is_due_is_made_beside_the_work(tmp_path: Path) -> None:
    async def start() -> None:
        async with running.started(settings(tmp_path)):
            await until(lambda: list((tmp_path / "copies").glob("*.db")))

    asyncio.run(start())
