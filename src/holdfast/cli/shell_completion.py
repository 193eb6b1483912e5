"""`holdfast completion`: print the shell completion script, and answer its requests."""

from __future__ import annotations

import re
from collections.abc import Mapping

import click
from click import shell_completion

from holdfast import config, errors, safe_text, types
from holdfast.cli import lazy_group

SHELLS = ("bash", "zsh", "fish")
MAX_CONVERSATIONS = 50


@click.command(name="completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash   add to ~/.bashrc: eval "$(holdfast completion bash)"
    zsh    add to ~/.zshrc:  eval "$(holdfast completion zsh)"
    fish   run: holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """
    click.echo(script(click.get_current_context().find_root().command, shell))


def script(program: click.Command, shell: str) -> str:
    """Return click's completion script, without running the shell to check its version."""
    kind = shell_completion.get_completion_class(shell)
    assert kind is not None  # click supports these three
    made = kind(program, {}, "holdfast", lazy_group.COMPLETE_VARIABLE)
    # For fish, click cuts a description at its first comma.
    template = made.source_template.replace('string split "," $completion', 'string split -m 1 "," $completion')
    return template % made.source_vars()


def answer(program: click.Command, environ: Mapping[str, str]) -> int:
    """Answer a request of the completion script."""
    variable = lazy_group.COMPLETE_VARIABLE
    return shell_completion.shell_complete(program, {}, "holdfast", variable, environ[variable])


def conversations(context: click.Context, incomplete: str) -> list[shell_completion.CompletionItem]:
    """Return matching ids with their titles, and titles of one word, which no shell needs quoted.

    Errors are not reported while a line is completed: without a readable store there are no completions.
    """
    try:
        target = context.params.get("path") or config.load().database
        with lazy_group.load("holdfast.app.open_store").open_existing(target) as db:
            heads: list[types.Session] = db.list_sessions(limit=MAX_CONVERSATIONS)
    except errors.HoldfastError:
        return []
    return [
        shell_completion.CompletionItem(value, help=safe_text.safe(head.title or ""))
        for head in heads
        for value in (head.conversation_id, head.title or "")
        if value.startswith(incomplete) and (value == head.conversation_id or re.fullmatch(r"[\w-]+", value))
    ]
