"""`holdfast rpc`: the agent for front ends of their own, by lines on standard input and output or by WebSocket.

Standard output carries frames only; everything else goes to standard error, or to the file of the settings.
"""

from __future__ import annotations

import asyncio
import secrets
from functools import partial

import click

from holdfast import config
from holdfast.app import logs, rpc
from holdfast.cli import console, lazy_group, shutdown
from holdfast.rpc import admission, stdio

TOKEN = "HOLDFAST_RPC_TOKEN"  # noqa: S105
OPEN = "Others can reach this address, and what is said there is not encrypted: whoever reads it has the token."
MADE = "The token is {token} for as long as this runs; set {variable} to choose one."


def _placed(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[str, int] | None:
    try:
        return admission.place(text) if text is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _named(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(map(admission.origin, texts))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(name="rpc")
@click.option(
    "--websocket",
    "place",
    metavar="[HOST:]PORT",
    callback=_placed,
    help="Listen there for WebSocket connections instead; the host is 127.0.0.1 unless another is named, and port 0 "
    f"takes any. Clients give the token of {TOKEN}, or one that is made and printed.",
)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    callback=_named,
    metavar="ORIGIN",
    help="With --websocket: let pages from there connect, as https://example.org. May be given again.",
)
@click.option("--model", metavar="PROVIDER/MODEL", help="The model to ask (default: HOLDFAST_MODEL).")
@lazy_group.logged("warning")
@lazy_group.database
@lazy_group.profile
@click.pass_obj
def command(
    out: console.Console,
    place: tuple[str, int] | None,
    origins: tuple[str, ...],
    model: str | None,
    log_format: logs.LogFormat,
    log_level: str,
    path: str | None,
    settings: config.Settings | None,
) -> int:
    """Serve a front end by JSON-RPC 2.0: a frame a line on standard input and output, until the input ends.

    Log lines go to standard error.
    """
    if place is None and origins:
        raise click.UsageError("--origin is for --websocket: no page reaches standard input.")
    wanted = settings or out.settings
    if place is None:
        with stdio.kept() as kept, logs.log_to(out.err, log_format, log_level, wanted):
            return shutdown.run(_by_lines(wanted, path, model, kept))
    with logs.log_to(out.err, log_format, log_level, wanted):
        return shutdown.run(_by_websocket(out, wanted, path, model, place, frozenset(origins)))


async def _by_lines(settings: config.Settings, path: str | None, model: str | None, kept: stdio.Kept) -> int:
    async with rpc.served(settings, database=path, model=model) as opened:
        await rpc.by_lines(opened, kept)
    return 0


async def _by_websocket(
    out: console.Console,
    settings: config.Settings,
    path: str | None,
    model: str | None,
    place: tuple[str, int],
    origins: frozenset[str],
) -> int:
    websocket = lazy_group.load("holdfast.rpc.websocket_transport")
    given = config.environment().get(TOKEN)
    rules = admission.Rules(given or secrets.token_urlsafe(32), place[0], origins)
    async with (
        rpc.served(settings, database=path, model=model) as opened,
        websocket.serving(partial(rpc.attended, opened), rules, place[1]) as address,
    ):
        if not admission.is_here(place[0]):
            out.note(OPEN)
        if not given:
            out.note(MADE.format(token=rules.token, variable=TOKEN))
        out.note(f"Listening at {address}")
        try:
            await asyncio.Event().wait()
        finally:
            await opened.close()  # While those who have something open can still be told.
    return 0
