"""`holdfast gateway run`: run the gateway until it is asked to stop.

The first SIGTERM, SIGHUP or Ctrl-C gives running turns the grace period to end; the second one does not wait.
Unfinished messages stay in the store for the next process, which may be started before this one stops.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import click
import msgspec

from holdfast import config
from holdfast.app import gateway as app_gateway
from holdfast.app import logs, systemd
from holdfast.cli import console, lazy_group, shutdown
from holdfast.gateway import gateway
from holdfast.gateway.platforms.http import server

logger = logging.getLogger("holdfast.gateway")

Serve = Callable[[], AbstractAsyncContextManager[app_gateway.RunningGateway]]


@click.command(name="run")
@click.option("--host", help="The address to listen at (default: 127.0.0.1, for this machine only).")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="The port to listen at (default: 8642); 0 takes any free port."
)
@lazy_group.model
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
    """Run the gateway until SIGTERM, SIGHUP or Ctrl-C; a second signal does not wait for running turns.

    The log is written to standard error. Exit codes: 0 stopped by SIGTERM or SIGHUP, 130 by Ctrl-C, 2 invalid
    settings, 1 another error.
    """
    wanted = _with_options(settings or out.settings, host, port, grace)
    serve = partial(app_gateway.serve, wanted, database=path, model=model)
    server.raise_file_limit()
    app_gateway.tune_garbage_collector()
    signals = shutdown.SignalHandler()
    with logs.log_to(out.err, log_format, log_level, wanted):
        code = signals.run(_serve(signals, out, serve, log_format))
    return code if not signals.received else 130 if signals.received[0] == signal.SIGINT else 0


def _with_options(
    settings: config.Settings, host: str | None, port: int | None, grace: float | None
) -> config.Settings:
    """Return the settings with the options of the command line."""
    changed = settings.gateway
    given = {name: value for name, value in {"host": host, "port": port}.items() if value is not None}
    if given:
        changed = msgspec.structs.replace(changed, http=msgspec.structs.replace(changed.http, enabled=True, **given))
    if grace is not None:
        changed = msgspec.structs.replace(changed, grace=grace)
    return msgspec.structs.replace(settings, gateway=changed)


async def _serve(signals: shutdown.SignalHandler, out: console.Console, serve: Serve, form: logs.LogFormat) -> int:
    environ, stop = config.environment(), asyncio.Event()
    async with serve() as running, systemd.send_heartbeats(environ):

        def abandon() -> None:
            logger.warning("running turns are abandoned; the next process continues them")
            running.gateway.runtimes.abandon()

        signals.set_stops(stop.set, abandon)
        if running.notice:
            _report(out, form, running.notice)
        if await _until(stop, running.gateway, running.gateway.wait_ready()):
            for line in running.addresses:
                _report(out, form, line)
            systemd.notify(environ, "READY=1", f"STATUS=Answering with {running.model}")
            connected = [each for each in running.gateway.platforms if each not in running.gateway.connecting]
            logger.info("the gateway is ready, with %s, on %s", running.model, ", ".join(connected) or "no platform")
            await _until(stop, running.gateway, stop.wait())
        systemd.notify(environ, "STOPPING=1")
        logger.info("the gateway is stopping; running turns have %.0f seconds", running.gateway.grace)
    logger.info("the gateway has stopped")
    return 0


def _report(out: console.Console, form: logs.LogFormat, line: str) -> None:
    """Print a line, or log it if the output is JSON."""
    (logger.info if form == "json" else out.note)(line)


async def _until(stop: asyncio.Event, running: gateway.Gateway, wanted: Coroutine[Any, Any, object]) -> bool:
    """Wait for `wanted` or the stop; return whether it is not stopped. Raises if the gateway fails."""
    tasks = [asyncio.create_task(each) for each in (running.wait_failed(), wanted, stop.wait())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
        return not stop.is_set()
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.wait(tasks)
