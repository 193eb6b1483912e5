"""`holdfast acp`: the agent for editors that speak the Agent Client Protocol, on standard input and output.

Standard output carries frames only; everything else goes to standard error, or to the file of the settings. An editor
is greeted before the agent is loaded: that takes longer than anything else of a start.
"""

from __future__ import annotations

import asyncio
from importlib import util
from typing import Any

import click

import holdfast
from holdfast import config, errors
from holdfast.acp import channel
from holdfast.cli import console, lazy_group, shutdown
from holdfast.rpc import line_transport, stdio

INSTALL = "Editors need a part that is not installed: pip install 'holdfast[acp]'"


@click.command(name="acp")
@click.option("--model", metavar="PROVIDER/MODEL", help="The model to ask (default: HOLDFAST_MODEL).")
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
    """Be the agent of an editor: Zed, JetBrains, Neovim, Emacs and others start this and talk to it.

    It speaks the Agent Client Protocol, a frame a line on standard input and output, until the input ends. Log lines go
    to standard error.
    """
    if util.find_spec("acp") is None:
        raise errors.HoldfastError(INSTALL)
    with stdio.kept() as kept:
        return shutdown.run(_served(out, settings, path, model, (log_format, log_level), kept))


async def _served(
    out: console.Console,
    profiled: config.Settings | None,
    path: str | None,
    model: str | None,
    log: tuple[str, str],
    kept: stdio.Kept,
) -> int:
    async with line_transport.opened(kept.reads, kept.writes, channel.LONGEST) as opened:
        wire = channel.Channel(opened, holdfast.__version__)
        greeted = await wire.greeted()
        try:
            settings = profiled or out.settings
            if greeted:
                logs, agent = await asyncio.to_thread(_loaded)
                with logs.log_to(out.err, *log, settings):
                    await agent.serve(wire, settings, database=path, model=model)
        except errors.HoldfastError as error:
            # The editor was greeted, and waits for an answer: where else would a person read it?
            await wire.turn_away(str(error))
            raise
    return 0


def _loaded() -> tuple[Any, Any]:
    """What takes its time: beside the loop, which goes on hearing signals."""
    try:
        return lazy_group.load("holdfast.app.logs"), lazy_group.load("holdfast.app.acp")
    except ImportError as error:
        raise errors.HoldfastError(f"Editors need a part that cannot be loaded: {error}") from error
