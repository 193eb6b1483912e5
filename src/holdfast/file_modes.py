"""Which users the mode of a file lets write it. POSIX only; elsewhere nothing is known to be shared."""

from __future__ import annotations

import os
import stat

try:
    import grp
    import pwd
except ImportError:  # Windows
    grp = pwd = None  # type: ignore[assignment]


def is_writable_by_others(found: os.stat_result) -> bool:
    """Whether others may write: anybody, or the members of a group that is not the user's private group.

    Where every user has a private group, the umask is 002: all that the user makes is writable by that group.
    """
    if os.name != "posix":
        return False
    return bool(found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid)))


def _is_private(gid: int) -> bool:
    """Whether a group is this user's primary one, bears the user's name and has no other members. Root has none."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    named = gid == user.pw_gid and group.gr_name == user.pw_name
    return gid != 0 and named and set(group.gr_mem) <= {user.pw_name}
