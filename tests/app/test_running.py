"""What runs beside the work: the store is looked after, and what cannot be done for it is said."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from holdfast import SessionDB, config, content_parts, events, types
from holdfast.app import compose, models
from holdfast.model import providers
from holdfast.store import store_meta
from holdfast.tools.shell import background
from tests.support.plugin_packages import TOOL_SOURCE, install_package
from tests.support.polling import until_async

PATIENCE = 60


def settings(home: Path) -> config.Settings:
    return config.Settings(
        home=str(home),
        database=str(home / "store.db"),
        colour=False,
        columns=None,
        model="offline",
        backup=config.BackupSection(folder=str(home / "copies")),
    )


def note(home: Path, key: str, value: str) -> None:
    with SessionDB(home / "store.db") as db:
        db.driver.write("meta", lambda tx: tx.run("meta_set", key=key, value=value))


def notice(home: Path) -> str | None:
    async def start() -> str | None:
        async with compose.start(settings(home)) as app:
            return app.notice

    return asyncio.run(start())


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (store_meta.BACKUP_DONE, "1000000.0", "overdue"),
        (store_meta.BACKUP_FAILED, "1000000.0", "failed"),
        (store_meta.BACKUP_DONE, "now", None),
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


async def test_attachments_nobody_names_are_collected_though_no_backup_can_be_made(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "store.db", clock=lambda: 1_000_000.0) as db:
        blob = db.blobs.put(b"left over")
    (tmp_path / "copies").touch()
    async with compose.start(settings(tmp_path)) as app:
        with SessionDB(tmp_path / "store.db") as db:
            await until_async(
                lambda: db.blobs.get(blob.digest) is None and db.admin.get_meta(store_meta.BACKUP_FAILED) is not None
            )
        assert app.notice is None


async def test_backup_that_is_due_is_made_beside_the_work(tmp_path: Path) -> None:
    async with compose.start(settings(tmp_path)):
        await until_async(lambda: list((tmp_path / "copies").glob("*.db")))


async def test_what_ended_while_nobody_watched_is_told_before_the_first_message_is_answered(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "store.db") as db:
        db.append_message("talk", role="user", content="Begin.", create=types.NewConversation(source="test"))
        db.append_message("talk", role="assistant", content="Begun.")
        place = msgspec.json.encode(background.ProcessLocation(str(tmp_path / "none"), "", "")).decode()
        for name in ("p1", "p2"):
            db.processes.record_start(
                types.Process(
                    id=name, conversation_id="talk", command="make", folder="/", started_at=1.0, place=place
                )
            )  # fmt: skip
    async with compose.start(settings(tmp_path)) as app:
        await app.runtime.submit("talk", events.Submit("And?"))
        said = [content_parts.text(each.content) for each in await app.db.transcript("talk", 2) if each.role == "user"]
    assert ["p1 ended" in said[0], "p2 ended" in said[1], said[2]] == [True, True, "And?"]


def test_a_store_that_takes_too_long_keeps_nobody_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compose, "FIRST_LOOK", 0.01)
    looks: list[object] = []

    class Slow(background.Watcher):
        async def check(self) -> tuple[int, int]:
            looks.append(self)
            await asyncio.Event().wait()
            raise AssertionError

    monkeypatch.setattr(background, "Watcher", Slow)
    assert notice(tmp_path) is None
    assert looks


# --- what agents get -------------------------------------------------------------------------------------


def offered(home: Path, **given: object) -> tuple[set[str], str | None]:
    """The tools of an agent the program builds, and what it has to say at its start."""

    async def start() -> tuple[set[str], str | None]:
        async with compose.start(msgspec.structs.replace(settings(home), **given)) as app:
            agent = await app.runtime.agents.get("talk")
            return {spec.name for spec in agent.tools.specs}, app.notice

    return asyncio.run(start())


def test_an_agent_can_read_outputs_and_remember_unless_told_otherwise(tmp_path: Path) -> None:
    assert {"read_output", "memory"} <= offered(tmp_path)[0]
    assert "memory" not in offered(tmp_path, memory=config.MemorySection(enabled=False))[0]


def test_tools_of_other_packages_are_there_and_what_is_wrong_with_them_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    install_package(site, "good", {"a": ":weather"}, TOOL_SOURCE.format(name="weather"))
    install_package(site, "sly", {"a": ":memory"}, TOOL_SOURCE.format(name="memory"))
    names, notice = offered(tmp_path)
    assert "weather" in names
    assert "plug-in sly" in str(notice)
    names, notice = offered(tmp_path, plugins=config.PluginsSection(disabled=["good", "sly"]))
    assert "weather" not in names
    assert notice is None


async def test_the_offline_model_is_known_as_such_however_it_was_chosen(tmp_path: Path) -> None:
    for named in ("offline", None):
        chosen = await models.choose(settings(tmp_path), named)
        assert models.is_offline(chosen.model)
    other = msgspec.structs.replace(settings(tmp_path), keys={"openai": config.Secret("k")})
    other = msgspec.structs.replace(other, providers=providers.PROVIDERS, fallback=("offline",))
    assert not models.is_offline((await models.choose(other, "openai/some")).model)
