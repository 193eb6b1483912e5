"""`holdfast gateway run`: run the gateway until it is asked to stop.

The first SIGTERM or Ctrl-C gives running turns the grace period to end; the second one does not wait. Unfinished
messages stay in the store for the next process, which may be started before this one stops.
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

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
Serve = Callable[[], AbstractAsyncContextManager[app_gateway.RunningGateway]]


@click.command(name="run")
@click.option("--host", help="The address to listen at (default: 127.0.0.1, for this machine only).")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="The port to listen at (default: 8642); 0 takes any free port."
)
@click.option("--model", metavar="NAME", help="The model, as provider/model.")
@click.option(
    "--grace", type=click.FloatRange(0, 86400), help="Seconds that running turns may take to end (default: 20)."
)
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
    log_format: logs.LogFormat,
    log_level: str,
    path: str | None,
    settings: config.Settings | None,
) -> int:
    """Run the gateway until SIGTERM or Ctrl-C; a second one does not wait for running turns.

    The log is written to standard error. Exit codes: 0 stopped by SIGTERM, 130 by Ctrl-C, 1 error.
    """
    wanted = _with_options(settings or out.settings, host, port, grace)
    serve = partial(app_gateway.serve, wanted, database=path, model=model)
    server.raise_file_limit()
    app_gateway.tune_garbage_collector()
    with logs.log_to(out.err, log_format, log_level, wanted):
        return asyncio.run(_run(out, serve, log_format))


def _with_options(
    settings: config.Settings, host: str | None, port: int | None, grace: float | None
) -> config.Settings:
    """Return the settings with the options of the command line."""
    said = settings.gateway
    given = {name: value for name, value in {"host": host, "port": port}.items() if value is not None}
    if given:
        said = msgspec.structs.replace(said, http=msgspec.structs.replace(said.http, enabled=True, **given))
    if grace is not None:
        said = msgspec.structs.replace(said, grace=grace)
    return msgspec.structs.replace(settings, gateway=said)


async def _run(out: console.Console, serve: Serve, form: logs.LogFormat) -> int:
    stop = StopSignals()
    try:
        with stop.handle():
            await _serve(stop, out, serve, form)
    except asyncio.CancelledError:
        if not stop.requested.done():
            raise
    return 130 if stop.requested.done() and stop.requested.result() == signal.SIGINT else 0


async def _serve(stop: StopSignals, out: console.Console, serve: Serve, form: logs.LogFormat) -> None:
    environ = config.environment()
    async with serve() as running, systemd.send_heartbeats(environ):
        stop.hurry = running.gateway.runtimes.abandon
        if running.notice:
            _report(out, form, running.notice)
        if await _until(stop, running.gateway, running.gateway.wait_ready()):
            for line in running.addresses:
                _report(out, form, line)
            systemd.notify(environ, "READY=1", f"STATUS=Answering with {running.model}")
            logger.info("the gateway is ready, with %s", running.model)
            await _until(stop, running.gateway, _never())
        systemd.notify(environ, "STOPPING=1")
        logger.info("the gateway is stopping; running turns have %.0f seconds", running.gateway.grace)
    logger.info("the gateway has stopped")


def _report(out: console.Console, form: logs.LogFormat, line: str) -> None:
    """Print a line, or log it if the output is JSON."""
    (logger.info if form == "json" else out.note)(line)


async def _never() -> None:
    await asyncio.Event().wait()


async def _until(stop: StopSignals, running: gateway.Gateway, wanted: Coroutine[Any, Any, None]) -> bool:
    """Wait for `wanted` or a stop signal; return whether `wanted` ended first. Raises if the gateway fails."""
    failed, reached = asyncio.create_task(running.wait_failed()), asyncio.create_task(wanted)
    either: list[asyncio.Future[Any]] = [stop.requested, failed, reached]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        for each in (failed, reached):
            if each.done():
                each.result()
        return reached.done() and not stop.requested.done()
    finally:
        for each in (failed, reached):
            each.cancel()
        await asyncio.wait([failed, reached])


class StopSignals:
    """Handles stop signals: the first stops, the second abandons running turns, the third cancels the program."""

    def __init__(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self.requested: asyncio.Future[int] = self._loop.create_future()
        self.hurry: Callable[[], object] | None = None

    @contextmanager
    def handle(self) -> Iterator[None]:
        for number in STOP_SIGNALS:
            self._loop.add_signal_handler(number, self.on_signal, number)
        try:
            yield
        finally:
            for number in STOP_SIGNALS:
                self._loop.remove_signal_handler(number)

    def on_signal(self, number: int) -> None:
        if not self.requested.done():
            self.requested.set_result(number)
            # Before the gateway runs there is nothing to stop gracefully.
            if self.hurry is None and self._task is not None:
                self._task.cancel()
        elif self.hurry is not None:
            logger.warning("running turns are abandoned; the next process continues them")
            hurry, self.hurry = self.hurry, None
            hurry()
        elif self._task is not None:
            self._task.cancel()
