"""What was typed before, in a file that only its owner can read. Losing it never disturbs the chat."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from prompt_toolkit import history


class Lines(history.FileHistory):
    """Lines typed, in all chats of this user. What cannot be written is remembered until the chat ends."""

    def load_history_strings(self) -> Iterable[str]:
        with suppress(OSError):
            return list(super().load_history_strings())
        return []

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string.encode("utf-8", "replace").decode())


def at(path: str) -> history.History:
    """The history at this path; one without a file where there can be none."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        os.chmod(path, 0o600)
    except OSError:
        return history.InMemoryHistory()
    return Lines(path)
