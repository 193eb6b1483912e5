"""`holdfast gateway`: the command group. Each command is loaded when it is used."""

from __future__ import annotations

import click

from holdfast.cli import lazy_group

COMMANDS = {
    "run": ("holdfast.cli.gateway_run", "Run the gateway; the default command."),
    "setup": ("holdfast.cli.gateway_setup:setup", "Set up a platform, or check its credentials."),
    "pair": ("holdfast.cli.gateway_access:pair", "Allow the sender who received a pairing code."),
    "allow": ("holdfast.cli.gateway_access:allow", "Allow a sender, as a user or an admin."),
    "deny": ("holdfast.cli.gateway_access:deny", "Deny a sender access."),
    "link": ("holdfast.cli.gateway_access:link", "Let a sender use the conversations of the terminal."),
    "people": ("holdfast.cli.gateway_people:people", "List allowed and denied senders."),
    "failed": ("holdfast.cli.gateway_queues:failed", "List messages that could not be sent."),
    "retry": ("holdfast.cli.gateway_queues:retry", "Send failed messages again."),
    "status": ("holdfast.cli.gateway_queues:status", "Show queues, leases, failures and platforms."),
}


@click.group(cls=lazy_group.LazyGroup, commands_in=COMMANDS, default_command="run")
def command() -> None:
    """Connect the agent to chat platforms and HTTP clients. `holdfast gateway` runs the gateway.

    Without settings it listens on this machine only, for OpenAI-compatible clients, and prints its address. Senders on
    chat platforms need access: by the settings (`[gateway.allow]`), by `allow`, or by a pairing code and `pair`.
    """
