"""`holdfast completion`: the script that teaches a shell to complete commands, options and ids, and its answers."""

from __future__ import annotations

from collections.abc import Mapping

import click
from click import shell_completion

from holdfast.cli import lazy_group

SHELLS = ("bash", "zsh", "fish")


@click.command(name="completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the script that completes commands and options in this shell.

    \b
    bash   eval "$(holdfast completion bash)" in ~/.bashrc
    zsh    eval "$(holdfast completion zsh)" in ~/.zshrc
    fish   holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """
    click.echo(script(click.get_current_context().find_root().command, shell))


def script(program: click.Command, shell: str) -> str:
    """The script, as click writes it, without asking the shell for its version first."""
    kind = shell_completion.get_completion_class(shell)
    assert kind is not None  # click has these three
    made = kind(program, {}, "holdfast", lazy_group.COMPLETING)
    # For fish click cuts what it tells of a word at the first comma.
    whole = made.source_template.replace('string split "," $completion', 'string split -m 1 "," $completion')
    return whole % made.source_vars()


def answer(program: click.Command, environ: Mapping[str, str]) -> int:
    """Answer the script."""
    return shell_completion.shell_complete(
        program, {}, "holdfast", lazy_group.COMPLETING, environ[lazy_group.COMPLETING]
    )
