"""Named points of every write, so that faults can be put exactly where they hurt.

The driver announces each point it passes: `append.queued`, `append.begun`, `append.message_insert`,
`append.committing`, `append.committed`, … With no hook set, which is always outside of fault tests, a
point costs one comparison.
"""

from __future__ import annotations

from collections.abc import Callable

hook: Callable[[str], None] | None = None


def reach(operation: str, stage: str) -> None:
    if hook is not None:
        hook(f"{operation}.{stage}")
