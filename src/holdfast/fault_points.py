"""Named points of every write, at which tests inject faults.

A driver calls the hook at each point it reaches: `append.queued`, `append.begun`, `append.message_insert`,
`append.committing`, `append.committed` and so on. Only tests set a hook; without one a point costs one comparison.
"""

from __future__ import annotations

from collections.abc import Callable

hook: Callable[[str], None] | None = None


def reach(operation: str, stage: str) -> None:
    if hook is not None:
        hook(f"{operation}.{stage}")
