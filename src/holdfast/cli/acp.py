"""`holdfast acp`: the agent for editors that speak the Agent Client Protocol, over stdio.

Standard output carries frames only; log lines go to standard error, or to the file of the settings. The editor is
greeted before the agent is loaded, which takes most of the start-up time.
"""

from __future__ import annotations

import asyncio
from importlib import util
from typing import Any

import click

import holdfast
from holdfast import config, errors, installation
from holdfast.acp import channel
from holdfast.cli import console, lazy_group, shutdown
from holdfast.rpc import line_transport


@click.command(name="acp")
@lazy_group.model
@lazy_group.logged("warning")
@lazy_group.database
@lazy_group.profile
@click.pass_obj
def command(
    out: console.Console,
    model: str | None,
    log_format: str,
    log_level: str,
    path: str | None,
    settings: config.Settings | None,
) -> int:
    """Run as the agent of an editor (Zed, JetBrains, Neovim, Emacs and others).

    It speaks the Agent Client Protocol, one frame per line on standard input and output, until the input ends. Log
    lines go to standard error.
    """
    if util.find_spec("acp") is None:
        raise errors.HoldfastError(f"The editor support is not installed. Run: {installation.install_command('acp')}")
    with line_transport.reserve_stdio() as stdio:
        return shutdown.run(_serve(out, settings, path, model, (log_format, log_level), stdio))


async def _serve(
    out: console.Console,
    profiled: config.Settings | None,
    path: str | None,
    model: str | None,
    log: tuple[str, str],
    stdio: line_transport.Stdio,
) -> int:
    async with line_transport.open_lines(stdio.reads, stdio.writes, channel.MAX_FRAME_BYTES) as lines:
        wire = channel.EditorChannel(lines, holdfast.__version__)
        is_initialized = await wire.wait_initialized()
        try:
            settings = profiled or out.settings
            if is_initialized:
                logs, agent = await asyncio.to_thread(_load)
                with logs.log_to(out.err, *log, settings):
                    await agent.serve(wire, settings, database=path, model=model)
        except errors.HoldfastError as error:
            # The editor waits for answers and is the only place where the user would see the error.
            await wire.refuse_all(str(error))
            raise
    return 0


def _load() -> tuple[Any, Any]:
    """Load the slow imports, in a thread, so that the event loop handles signals meanwhile."""
    try:
        return lazy_group.load("holdfast.app.logs"), lazy_group.load("holdfast.app.acp")
    except ImportError as error:
        raise errors.HoldfastError(f"The editor support could not be loaded: {error}") from error
