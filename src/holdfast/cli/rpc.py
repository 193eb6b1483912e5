"""`holdfast rpc`: the JSON-RPC server for custom clients, over stdio or WebSocket.

Standard output carries frames only; log lines go to standard error, or to the file of the settings.
"""

from __future__ import annotations

import asyncio
import secrets
from functools import partial

import click

from holdfast import config
from holdfast.app import logs, rpc
from holdfast.cli import console, lazy_group, shutdown
from holdfast.rpc import admission, line_transport

TOKEN = "HOLDFAST_RPC_TOKEN"  # noqa: S105
UNENCRYPTED = (
    "Other machines can reach this address, and the connection is not encrypted: the token can be intercepted."
)
GENERATED_TOKEN = "Token for this run: {token} (set {variable} to choose one)."  # noqa: S105


def _parse_address(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[str, int] | None:
    try:
        return admission.parse_address(text) if text is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _parse_origins(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(map(admission.parse_origin, texts))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(name="rpc")
@click.option(
    "--websocket",
    "address",
    metavar="[HOST:]PORT",
    callback=_parse_address,
    help="Listen for WebSocket connections instead. The default host is 127.0.0.1; port 0 selects a free port. Clients "
    f"send the token of {TOKEN}, or one that is generated and printed.",
)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    callback=_parse_origins,
    metavar="ORIGIN",
    help="With --websocket: allow web pages of this origin, such as https://example.org. Can be repeated.",
)
@lazy_group.model
@lazy_group.logged("warning")
@lazy_group.database
@lazy_group.profile
@click.pass_obj
def command(
    out: console.Console,
    address: tuple[str, int] | None,
    origins: tuple[str, ...],
    model: str | None,
    log_format: logs.LogFormat,
    log_level: str,
    path: str | None,
    settings: config.Settings | None,
) -> int:
    """Run the JSON-RPC server for custom clients (stdio or WebSocket).

    Over stdio it reads and writes one frame per line until the input ends. Log lines go to standard error.
    """
    if address is None and origins:
        raise click.UsageError("--origin needs --websocket.")
    used = settings or out.settings
    if address is None:
        with line_transport.reserve_stdio() as stdio, logs.log_to(out.err, log_format, log_level, used):
            return shutdown.run(_serve_lines(used, path, model, stdio))
    with logs.log_to(out.err, log_format, log_level, used):
        return shutdown.run(_serve_websocket(out, used, path, model, address, frozenset(origins)))


async def _serve_lines(
    settings: config.Settings, path: str | None, model: str | None, stdio: line_transport.Stdio
) -> int:
    async with rpc.open_server(settings, database=path, model=model) as opened:
        await rpc.serve_lines(opened, stdio)
    return 0


async def _serve_websocket(
    out: console.Console,
    settings: config.Settings,
    path: str | None,
    model: str | None,
    address: tuple[str, int],
    origins: frozenset[str],
) -> int:
    websocket = lazy_group.load("holdfast.rpc.websocket_transport")
    token = config.environment().get(TOKEN)
    host, port = address
    rules = admission.AdmissionRules(token or secrets.token_urlsafe(32), host, origins)
    async with (
        rpc.open_server(settings, database=path, model=model) as opened,
        websocket.serve(partial(rpc.serve_channel, opened), rules, port) as url,
    ):
        if not admission.is_loopback(host):
            out.note(UNENCRYPTED)
        if not token:
            out.note(GENERATED_TOKEN.format(token=rules.token, variable=TOKEN))
        out.note(f"Listening at {url}")
        try:
            await asyncio.Event().wait()
        finally:
            await opened.close()  # While the clients are connected and get the events of that.
    return 0
