"""What a project wants left out: the rules of `.gitignore` and `.ignore`. Pure.

The rules of a folder hold for all below it. The last one that fits decides, and those of a deeper folder come later.
What lies in a folder that is left out cannot be brought back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.tools.files import globs

FILES = (".gitignore", ".ignore")
"""By rising weight."""
SKIPPED = frozenset({".git", ".hg", ".svn", "node_modules", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache",
                     ".pytest_cache", ".tox", ".DS_Store"})  # fmt: skip
MOST = 5_000


class Rule(msgspec.Struct, frozen=True):
    """One line of such a file."""

    pattern: tuple[globs.Part, ...]
    brings_back: bool
    folders_only: bool


class Rules(msgspec.Struct, frozen=True):
    """The rules of one folder, which is so many parts below the root."""

    depth: int
    rules: tuple[Rule, ...]


def read(text: str, depth: int) -> Rules:
    """The rules of a file."""
    lines = text.removeprefix("\ufeff").split("\n")[:MOST]
    return Rules(depth, tuple(rule for rule in map(_rule, lines) if rule is not None))


def _rule(line: str) -> Rule | None:
    line = _trimmed(line.removesuffix("\r"))
    if not line or line.startswith("#"):
        return None
    brings_back = line.startswith("!")
    pattern = line[1:] if brings_back else line
    folders_only = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    if not pattern.strip("/") or "//" in pattern:
        return None
    anywhere = "/" not in pattern
    return Rule(globs.compiled(f"**/{pattern}" if anywhere else pattern), brings_back, folders_only)


def _trimmed(line: str) -> str:
    """Without spaces at its end, but for one that a backslash keeps."""
    bare = line.rstrip(" ")
    kept = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if kept % 2 and len(bare) < len(line) else bare


def left_out(path: Sequence[str], folder: bool, known: Iterable[Rules]) -> bool:
    """Whether a path, by its parts from the root, is left out; the folders above it are not."""
    if path[-1] in SKIPPED:
        return True
    out = False
    for rules in known:
        below = path[rules.depth :]
        for rule in rules.rules:
            if rule.brings_back == out and (folder or not rule.folders_only) and globs.fits(rule.pattern, below):
                out = not rule.brings_back
    return out
