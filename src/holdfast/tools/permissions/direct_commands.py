"""Direct commands: programs known not to run another program that their words or their input name.

A deny rule can be checked only against such commands: any other program may start what is denied. So where rules deny,
a line is cleared only if all its commands are in this table; for every other line a person is asked. The table need not
be complete: a program that is missing costs a question.
"""

from __future__ import annotations

import re

import msgspec

from holdfast.tools.permissions import shell_parse


class Direct(msgspec.Struct, frozen=True):
    """When a program is direct: with one of these first words, if any are named, and without such words.

    Many programs accept a long option by any beginning that no other option has: `sort --co=PROGRAM`.
    """

    first: frozenset[str] = frozenset()
    unless: str = ""


_ANY = Direct()
_TABLE = {
    **dict.fromkeys(
        shell_parse.names(
            """
            basename cat cd cksum cmp comm cp cut date df diff dirname du echo egrep expr false fgrep file fold grep
            head hexdump hostname id jq join ln locale ls md5sum mkdir mktemp mv nl nproc od paste printenv ps pwd
            readlink realpath rm rmdir ruff seq sha1sum sha256sum sha512sum sleep stat strings sum tail tee
            touch tr tree true tsc tty uname uniq uptime wc which whoami :
            """
        ),
        _ANY,
    ),
    "cargo": Direct(shell_parse.names("bench build check clean clippy doc fmt test tree update"), r"--config.*|-Z.*"),
    "find": Direct(unless=r"-(?:exec|ok).*"),
    "git": Direct(
        shell_parse.names(
            """
            add blame branch checkout cherry-pick commit describe diff fetch log ls-files merge mv pull push remote
            reset restore rev-parse revert rm shortlog show stash status switch tag
            """
        ),
        # push --exec and --receive-pack, fetch --upload-pack, as short as git accepts them.
        r"--ex?(?:=.*)?|--(?:exe|rece|upl).*|ext::.*",
    ),
    "go": Direct(shell_parse.names("build clean doc fmt list test version vet"), r"-.*(?:exec|tool|flags|overlay).*"),
    "make": Direct(unless=r".*=.*|-[^-]*[fE].*|--[efm].*"),
    "mypy": Direct(unless=r"--(?:python-e|ins).*"),
    "npm": Direct(shell_parse.names("ci install ls outdated test view"), r"-.*"),
    # xdist starts the interpreter that --tx and --px name; -o sets any option.
    "pytest": Direct(unless=r"--(?:tx|px|override).*|-[^-]*o.*"),
    "rg": Direct(unless=r"--(?:pre|hostname-bin).*"),
    "sort": Direct(unless=r"--co.*"),
}
"""Build tools and test runners do what files of the project say; no rule about a command line can see that."""


def is_direct(words: shell_parse.Command) -> bool:
    """Whether a command, by words, runs no other program that its words or its input name."""
    if not words or not all(map(shell_parse.known, words)):
        return False
    found = _TABLE.get(words[0])
    if found is None or (found.first and words[1:2] and words[1] not in found.first):
        return False
    return not any(re.fullmatch(found.unless, word, re.DOTALL) for word in words[1:])
