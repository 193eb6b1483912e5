"""The history of typed lines, in a file that only its owner can read. Losing it never disturbs a session."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from prompt_toolkit import history


class InputHistory(history.FileHistory):
    """Lines typed in all chats of this user. Lines that cannot be written are kept until the chat ends."""

    def load_history_strings(self) -> Iterable[str]:
        """Return the lines, newest first; none if the file cannot be read."""
        with suppress(OSError):
            return list(super().load_history_strings())
        return []

    def store_string(self, string: str) -> None:
        """Append a line; do nothing if the file cannot be written."""
        with suppress(OSError):
            super().store_string(string.encode("utf-8", "replace").decode())


def open_history(path: str) -> history.History:
    """Open the history at this path; keep it in memory if the file cannot be created."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        os.chmod(path, 0o600)
    except OSError:
        return history.InMemoryHistory()
    return InputHistory(path)
