"""Check which users may write a file, by its mode (POSIX only)."""

from __future__ import annotations

import os
import stat

try:
    import grp
    import pwd
except ImportError:  # Windows
    grp = pwd = None  # type: ignore[assignment]


def is_writable_by_others(found: os.stat_result) -> bool:
    """Return whether other users may write: everyone, or a group that is not the user's private group.

    On systems with private groups the umask is 002, so that the user's files are writable by that group.
    """
    if os.name != "posix":
        return False
    return bool(found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid)))


def _is_private(gid: int) -> bool:
    """Return whether a group is the user's primary group, has the user's name and no other members; never for root."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    named = gid == user.pw_gid and group.gr_name == user.pw_name
    return gid != 0 and named and set(group.gr_mem) <= {user.pw_name}
