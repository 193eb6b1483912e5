"""`holdfast gateway`: the agent for chats and programs. Its commands, each loaded when it is used."""

from __future__ import annotations

import click

from holdfast.cli import lazy_group

COMMANDS = {
    "run": ("holdfast.cli.gateway_run", "Take in and answer what comes; `holdfast gateway` alone does this, too."),
    "pair": ("holdfast.cli.gateway_access:pair", "Let in whoever was given this code."),
    "allow": ("holdfast.cli.gateway_access:allow", "Let somebody in by their id, as a user or an admin."),
    "deny": ("holdfast.cli.gateway_access:deny", "Let somebody in no more."),
    "people": ("holdfast.cli.gateway_access:people", "List who was let in or denied."),
    "failed": ("holdfast.cli.gateway_outbox:failed", "List what could not be sent."),
    "retry": ("holdfast.cli.gateway_outbox:retry", "Have something sent that could not be."),
    "status": ("holdfast.cli.gateway_status", "What waits, what is worked on, and what could not be sent."),
}


@click.group(cls=lazy_group.LazyGroup, commands_in=COMMANDS, default_command="run")
def command() -> None:
    """The agent for chats and programs: `holdfast gateway` runs it until it is asked to stop.

    Without any settings it listens on this machine only, for OpenAI-compatible clients, and says where. Whoever is not
    let in is not answered: by settings (`[gateway.allow]`), by `allow`, or by the code a stranger is given and `pair`.
    """
