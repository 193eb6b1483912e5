"""Find model servers on this machine by asking their default ports, and check which user runs them.

Only 127.0.0.1 is asked, over a plain socket, so a search that finds nothing takes about a millisecond. Any user can
listen on a port above 1023, so a server is used automatically only if its owner is trusted. Linux lists the owner of
every socket in /proc/net/tcp and /proc/net/tcp6; on other systems, and in another network namespace, it is unknown.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.model import providers

try:
    import pwd
except ImportError:  # Windows
    pwd = None  # type: ignore[assignment]

MAX_ANSWER_BYTES = 4 * 1024 * 1024
SOCKET_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class RunningServer(msgspec.Struct, frozen=True):
    """A server that answered: its kind, its address, its models, and their window if it reports one."""

    kind: str
    base_url: str
    models: tuple[str, ...]
    window: int | None = None
    uids: frozenset[int] = frozenset()
    """The users who own its listening sockets; empty if unknown."""


class _Model(msgspec.Struct, frozen=True):
    id: str
    object: str = ""
    owned_by: str = ""
    max_model_len: int | None = None
    meta: dict[str, Any] | None = None


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model] | None
    object: str


# Where a server reports its window, if not in its list of models.
_WINDOW_PATHS = {"llama.cpp": "/props", "lmstudio": "/api/v0/models", "ollama": "/api/ps"}

# A server may listen on the default port of another kind. The owner of its models shows which kind it is.
_KINDS_BY_OWNER = {"library": "ollama", "llamacpp": "llama.cpp", "vllm": "vllm", "organization_owner": "lmstudio"}


async def find(
    timeout: float = 0.3,
    *,
    kinds: Sequence[providers.LocalServer] = providers.LOCAL_SERVERS,
    host: str = providers.LOCALHOST,
) -> list[RunningServer]:
    """Return the servers that answer within `timeout` seconds, in the order of `kinds`. Never raises."""
    found = await asyncio.gather(*(_find_one(host, kind, timeout) for kind in kinds))
    return [server for server in found if server is not None]


def parse_models(kind: str, base_url: str, body: bytes) -> RunningServer | None:
    """Return the server that sent this list of models; None if the body is not such a list."""
    try:
        models = msgspec.json.decode(body, type=_Models)
    except _UNREADABLE:
        return None
    listed = models.data or []
    if models.object != "list" or any(model.object not in ("model", "") for model in listed):
        return None
    # The window is known only if there is one model, or all models report the same.
    windows = {model.max_model_len or (model.meta or {}).get("n_ctx") for model in listed}
    window = windows.pop() if len(windows) == 1 else None
    kind = next((_KINDS_BY_OWNER[model.owned_by] for model in listed if model.owned_by in _KINDS_BY_OWNER), kind)
    ids = tuple(model.id for model in listed)
    return RunningServer(kind, base_url, ids, window if isinstance(window, int) and window > 0 else None)


def parse_window(body: bytes) -> int | None:
    """Return the window that a server reports, in any known format; the smallest one if there are several."""
    try:
        given = msgspec.json.decode(body)
    except _UNREADABLE:
        return None
    windows: list[Any] = []
    match given:
        case {"default_generation_settings": {"n_ctx": window}}:
            windows = [window]
        case {"data": [*models]} | {"models": [*models]}:
            names = ("loaded_context_length", "context_length")
            windows = [model.get(name) for model in models if isinstance(model, dict) for name in names]
    return min((window for window in windows if isinstance(window, int) and window > 0), default=None)


async def _find_one(host: str, kind: providers.LocalServer, timeout: float) -> RunningServer | None:
    body = await _get(host, kind.port, "/v1/models", timeout)
    found = parse_models(kind.name, f"http://{host}:{kind.port}/v1", body) if body is not None else None
    if found is None:
        return None
    found = msgspec.structs.replace(found, uids=owner_uids(kind.port))
    if found.window is not None or found.kind not in _WINDOW_PATHS:
        return found
    body = await _get(host, kind.port, _WINDOW_PATHS[found.kind], timeout)
    return msgspec.structs.replace(found, window=parse_window(body)) if body is not None else found


async def _get(host: str, port: int, path: str, timeout: float) -> bytes | None:
    """Return the body of a 200 response; None for any other response or failure."""
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port, limit=MAX_ANSWER_BYTES)
            try:
                # An HTTP/1.0 response ends with its connection; some servers send chunks anyway.
                request = f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nAccept: application/json\r\n\r\n"
                writer.write(request.encode())
                return await _read_response(reader)
            finally:
                writer.close()
    except (OSError, TimeoutError, EOFError, ValueError, asyncio.LimitOverrunError):
        return None


async def _read_response(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    if not status.startswith("HTTP/1.") or status.split(" ")[1:2] != ["200"]:
        raise ValueError("not a 200")
    fields = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = b""
        while (size := int((await reader.readline()).partition(b";")[0], 16)) and len(body) < MAX_ANSWER_BYTES:
            body += (await reader.readexactly(size + 2))[:-2]
        return body
    if "content-length" in headers:
        return await reader.readexactly(min(int(headers["content-length"]), MAX_ANSWER_BYTES))
    return await reader.read(MAX_ANSWER_BYTES)


# --- owners of listening sockets -------------------------------------------------------------------------

_LISTEN = "0A"


def _format_address(address: bytes) -> str:
    """Format four bytes as /proc does: a 32-bit integer in the byte order of the machine."""
    return f"{int.from_bytes(address, sys.byteorder):08X}"


_LOOPBACK = _format_address(socket.inet_aton(providers.LOCALHOST))
# A connection to 127.0.0.1 reaches sockets bound to it or to every address, over IPv4 or as an IPv4-mapped one.
_REACHABLE = {_LOOPBACK, "0" * 8, "0" * 32, "0" * 16 + _format_address(b"\0\0\xff\xff") + _LOOPBACK}


def owner_uids(port: int) -> frozenset[int]:
    """Return the uids of the sockets that listen on this port of 127.0.0.1; empty if unknown."""
    found = set[int]()
    for path in SOCKET_TABLES:
        try:
            with open(path, encoding="ascii") as table:
                rows = [line.split() for line in table]
        except OSError:
            continue
        for row in rows[1:]:
            address, _, local_port = row[1].partition(":")
            if row[3] == _LISTEN and int(local_port, 16) == port and address in _REACHABLE:
                found.add(int(row[7]))
    return frozenset(found)


def is_trusted(uids: frozenset[int], own: int | None = None) -> bool:
    """Whether every owner is this user, root, or the service account of a model server, such as `ollama`."""
    own = os.getuid() if own is None and uids else own
    services = {kind.name for kind in providers.LOCAL_SERVERS}
    return bool(uids) and all(uid in (0, own) or user_name(uid) in services for uid in uids)


def user_name(uid: int) -> str | None:
    """Return the login name of a user; None if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, AttributeError):
        return None
