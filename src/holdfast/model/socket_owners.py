"""The users who own the listening sockets of a port, so that another user's program is not taken for a model server.

Any user of a machine can listen on a port above 1023 before the real server does. Linux lists the owner of every socket
in /proc/net/tcp and /proc/net/tcp6; elsewhere, and for a socket in another network namespace, the owner is unknown.
"""

from __future__ import annotations

import os
import socket
import sys

from holdfast.model import local_server_kinds

try:
    import pwd
except ImportError:  # Windows
    pwd = None  # type: ignore[assignment]

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"


def _word(address: bytes) -> str:
    """Format four bytes as /proc does: a 32-bit integer in the byte order of the machine."""
    return f"{int.from_bytes(address, sys.byteorder):08X}"


_LOOPBACK = _word(socket.inet_aton(local_server_kinds.HOST))
# A connection to 127.0.0.1 reaches sockets bound to it or to every address, over IPv4 or as an IPv4-mapped one.
_REACHED = {_LOOPBACK, "0" * 8, "0" * 32, "0" * 16 + _word(b"\0\0\xff\xff") + _LOOPBACK}


def owner_uids(port: int) -> frozenset[int]:
    """Return the uids of the sockets that listen on this port of 127.0.0.1; empty if the system does not say."""
    found = set[int]()
    for path in TABLES:
        try:
            with open(path, encoding="ascii") as table:
                rows = [line.split() for line in table]
        except OSError:
            continue
        for row in rows[1:]:
            address, _, local_port = row[1].partition(":")
            if row[3] == _LISTEN and int(local_port, 16) == port and address in _REACHED:
                found.add(int(row[7]))
    return frozenset(found)


def is_trusted(uids: frozenset[int], own: int | None = None) -> bool:
    """Whether every owner is this user, root, or the service account of a model server, such as `ollama`."""
    own = os.getuid() if own is None and uids else own
    services = {kind.name for kind in local_server_kinds.KINDS}
    return bool(uids) and all(uid in (0, own) or user_name(uid) in services for uid in uids)


def user_name(uid: int) -> str | None:
    """Return the login name of a user; None if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, AttributeError):
        return None
