"""Glob patterns, and the ignore rules of a project: `.gitignore` and `.ignore` files, matched as git does.

Patterns are translated by `pathspec` and matched by `regex` with a timeout, because they may come from an untrusted
project: a pattern that backtracks without end matches nothing instead of blocking the process. The rules of a folder
apply to everything below it. The last rule that matches decides, and the rules of a deeper folder come later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

import msgspec
import regex  # type: ignore[import-untyped]
from pathspec.patterns.gitignore import GitIgnorePatternError
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

IGNORE_FILES = (".gitignore", ".ignore")
"""In order of precedence, the strongest last."""
ALWAYS_IGNORED = frozenset({".git", ".hg", ".svn", "node_modules", ".venv", "__pycache__", ".mypy_cache",
                            ".ruff_cache", ".pytest_cache", ".tox", ".DS_Store"})  # fmt: skip
MAX_RULES = 5_000
MAX_ALTERNATIVES = 64
MATCH_TIMEOUT_SECONDS = 0.05

_BRACES = regex.compile(r"\{([^{}]*,[^{}]*)\}")
_DIRECTORY = "(?P<ps_d>/)"
_NEGATED_CLASS = regex.compile(r"(?<!\\)\[\^(?!/\])")
_POSIX_CLASSES = {"[:alnum:]": "a-zA-Z0-9", "[:alpha:]": "a-zA-Z", "[:digit:]": "0-9", "[:lower:]": "a-z",
                  "[:space:]": r" \t", "[:upper:]": "A-Z", "[:xdigit:]": "0-9a-fA-F"}  # fmt: skip

Matcher = Callable[[str], bool]
"""Whether a path matches. Paths are relative and use slashes; the path of a folder ends with one."""


class IgnoreRule(msgspec.Struct, frozen=True):
    """One line of an ignore file."""

    matches: Matcher
    ignores: bool
    """False for a line that begins with `!`, which includes again."""


class IgnoreRules(msgspec.Struct, frozen=True):
    """The rules of one folder, which is `depth` path components below the root."""

    depth: int
    rules: tuple[IgnoreRule, ...]


def parse(text: str, depth: int) -> IgnoreRules:
    """Parse an ignore file. Invalid lines are skipped."""
    lines = text.removeprefix("\ufeff").split("\n")[:MAX_RULES]
    rules = (_compile(line.removesuffix("\r")) for line in lines)
    return IgnoreRules(depth, tuple(rule for rule in rules if rule is not None))


def is_ignored(path: Sequence[str], is_folder: bool, known: Iterable[IgnoreRules]) -> bool:
    """Return whether a path, given by its components from the root, is ignored. Its parent folders are not."""
    if path[-1] in ALWAYS_IGNORED:
        return True
    ignored = False
    for rules in known:
        below = "/".join(path[rules.depth :]) + "/" * is_folder
        for rule in rules.rules:
            if rule.ignores != ignored and rule.matches(below):
                ignored = rule.ignores
    return ignored


def glob(pattern: str) -> Matcher:
    """Return a matcher for files: `*.py` at any depth, `src/**/*.{js,ts}` from the root."""
    rules = [_compile("\\" * each.startswith(("!", "#")) + each.rstrip("/")) for each in expand_braces(pattern)]
    return lambda path: any(rule is not None and rule.matches(path) for rule in rules)


def expand_braces(pattern: str) -> list[str]:
    """Expand `*.{js,ts}` into the patterns it stands for, at most MAX_ALTERNATIVES of them."""
    pending, done = [pattern.removeprefix("./")], list[str]()
    while pending and len(pending) + len(done) <= MAX_ALTERNATIVES:
        one = pending.pop()
        braces = _BRACES.search(one)
        if braces is None:
            done.append(one)
        else:
            pending += [one[: braces.start()] + each + one[braces.end() :] for each in braces[1].split(",")]
    return done


@functools.lru_cache(maxsize=4096)
def _compile(line: str) -> IgnoreRule | None:
    for name, members in _POSIX_CLASSES.items():
        line = line.replace(name, members)
    try:
        source, ignores = GitIgnoreSpecPattern.pattern_to_regex(line)
    except GitIgnorePatternError:
        return None
    if source is None or ignores is None:
        return None
    # pathspec also matches everything below a folder; here each path component is tested by itself.
    source = source.replace(f"(?:{_DIRECTORY}|$)", "/?$")
    # In git, unlike in pathspec, a negated class never matches a slash.
    source = _NEGATED_CLASS.sub("[^/", source)
    try:
        compiled = regex.compile(f"{source}$" if source.endswith(_DIRECTORY) else source, regex.DOTALL)
    except regex.error:
        return None
    # A timeout makes each search slower, and few wildcards cannot backtrack for long.
    timeout = MATCH_TIMEOUT_SECONDS if line.count("*") > 2 else None
    return IgnoreRule(functools.partial(_search, compiled, timeout), bool(ignores))


def _search(compiled: regex.Pattern[str], timeout: float | None, path: str) -> bool:
    try:
        return compiled.search(path, timeout=timeout) is not None
    except TimeoutError:
        return False
