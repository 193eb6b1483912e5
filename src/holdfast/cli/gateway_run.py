"""`holdfast gateway run`: takes in and answers what comes, until it is asked to stop.

The first SIGTERM or Ctrl-C lets what runs come to its end, for the seconds that settings give; the second does not
wait. What is left is in the store, and whoever runs next goes on with it: another may be started before this one stops.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Any

import click
import msgspec

from holdfast import config
from holdfast.app import gateway as app_gateway
from holdfast.app import logs, systemd
from holdfast.cli import console, lazy_group
from holdfast.gateway import gateway
from holdfast.gateway.platforms.http import server

logger = logging.getLogger("holdfast.gateway")

STOPS = (signal.SIGTERM, signal.SIGINT)
Served = Callable[[], AbstractAsyncContextManager[app_gateway.Serving]]


@click.command(name="run")
@click.option("--host", help="The address to listen at (default: 127.0.0.1, which only this machine reaches).")
@click.option("--port", type=click.IntRange(0, 65535), help="The port to listen at (default: 8642); 0 takes any.")
@click.option("--model", metavar="NAME", help="The model to ask, as provider/model.")
@click.option("--grace", type=click.FloatRange(0, 86400), help="Seconds that what runs may take to end (default: 20).")
@lazy_group.logged("info")
@lazy_group.database
@lazy_group.profile
@click.pass_obj
def command(
    out: console.Console,
    host: str | None,
    port: int | None,
    model: str | None,
    grace: float | None,
    log_format: logs.Form,
    log_level: str,
    path: str | None,
    settings: config.Settings | None,
) -> int:
    """Take in and answer what comes, until it is asked to stop (SIGTERM or Ctrl-C; twice: at once).

    Log lines go to standard error. Exit codes: 0 when it was stopped, 130 by Ctrl-C, 1 when something went wrong.
    """
    wanted = _with(settings or out.settings, host, port, grace)
    served = partial(app_gateway.served, wanted, database=path, model=model)
    server.raise_files()
    app_gateway.tune_garbage_collector()
    with logs.kept(out.err, log_format, log_level, wanted):
        return asyncio.run(_run(out, served, log_format))


def _with(settings: config.Settings, host: str | None, port: int | None, grace: float | None) -> config.Settings:
    """The settings, with what was said for this time."""
    said = settings.gateway
    given = {name: value for name, value in {"host": host, "port": port}.items() if value is not None}
    if given:
        said = msgspec.structs.replace(said, http=msgspec.structs.replace(said.http, enabled=True, **given))
    if grace is not None:
        said = msgspec.structs.replace(said, grace=grace)
    return msgspec.structs.replace(settings, gateway=said)


async def _run(out: console.Console, served: Served, form: logs.Form) -> int:
    stop = Stop()
    try:
        with stop.heard():
            await _serve(stop, out, served, form)
    except asyncio.CancelledError:
        if not stop.asked.done():
            raise
    return 130 if stop.asked.done() and stop.asked.result() == signal.SIGINT else 0


async def _serve(stop: Stop, out: console.Console, served: Served, form: logs.Form) -> None:
    environ = config.environment()
    async with served() as running, systemd.watched(environ):
        stop.hurry = running.gateway.desks.abandon
        for line in running.notices:
            _tell(out, form, line)
        if await _until(stop, running.gateway, running.gateway.ready()):
            for line in running.where:
                _tell(out, form, line)
            systemd.notify(environ, "READY=1", f"STATUS=Answering with {running.model}")
            logger.info("the gateway is ready, with %s", running.model)
            await _until(stop, running.gateway, _never())
        systemd.notify(environ, "STOPPING=1")
        logger.info("the gateway stops; what runs has %.0f seconds", running.gateway.grace)
    logger.info("the gateway has stopped")


def _tell(out: console.Console, form: logs.Form, line: str) -> None:
    """Whoever reads JSON reads nothing else."""
    (logger.info if form == "json" else out.note)(line)


async def _never() -> None:
    await asyncio.Event().wait()


async def _until(stop: Stop, running: gateway.Gateway, wanted: Coroutine[Any, Any, None]) -> bool:
    """Until something is so, or it is asked to stop; whether it is so. A part that fails raises what it raised."""
    failed, reached = asyncio.create_task(running.failed()), asyncio.create_task(wanted)
    either: list[asyncio.Future[Any]] = [stop.asked, failed, reached]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        for each in (failed, reached):
            if each.done():
                each.result()
        return reached.done() and not stop.asked.done()
    finally:
        for each in (failed, reached):
            each.cancel()
        await asyncio.wait([failed, reached])


class Stop:
    """What the signals that ask for it do, one after the other: end, end without waiting for what runs, and leave."""

    def __init__(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self.asked: asyncio.Future[int] = self._loop.create_future()
        self.hurry: Callable[[], object] | None = None

    @contextmanager
    def heard(self) -> Iterator[None]:
        for number in STOPS:
            self._loop.add_signal_handler(number, self.came, number)
        try:
            yield
        finally:
            for number in STOPS:
                self._loop.remove_signal_handler(number)

    def came(self, number: int) -> None:
        """A signal came."""
        if not self.asked.done():
            self.asked.set_result(number)
            # Before it has begun to work there is nothing to bring to an end.
            if self.hurry is None and self._task is not None:
                self._task.cancel()
        elif self.hurry is not None:
            logger.warning("what runs is left in the middle; whoever runs next goes on with it")
            hurry, self.hurry = self.hurry, None
            hurry()
        elif self._task is not None:
            self._task.cancel()
