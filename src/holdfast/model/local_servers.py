"""Model servers that run on this machine: found by asking the ports they are known to listen on.

Only 127.0.0.1 is asked, with a plain socket: where nothing listens, looking costs nothing worth measuring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from holdfast.model import local_server_kinds as kinds_
from holdfast.model import socket_owners

Kind = kinds_.Kind
KINDS, HOST = kinds_.KINDS, kinds_.HOST
LARGEST_ANSWER = 4 * 1024 * 1024


class Found(msgspec.Struct, frozen=True):
    """A server that answers: its kind, where it is, the models it has, and their window where it tells."""

    kind: str
    base_url: str
    models: tuple[str, ...]
    window: int | None = None
    uids: frozenset[int] = frozenset()
    """The users who own its listening socket; empty if the system does not say."""


class _Meta(msgspec.Struct, frozen=True):
    n_ctx: int | None = None


class _Model(msgspec.Struct, frozen=True):
    id: str
    object: str = ""
    owned_by: str = ""
    max_model_len: int | None = None
    meta: _Meta | None = None


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model] | None
    object: str


class _Settings(msgspec.Struct, frozen=True):
    n_ctx: int = 0


class _Props(msgspec.Struct, frozen=True):
    default_generation_settings: _Settings


class _Loaded(msgspec.Struct, frozen=True):
    loaded_context_length: int = 0
    context_length: int = 0


class _Running(msgspec.Struct, frozen=True):
    data: list[_Loaded] = []
    models: list[_Loaded] = []


# Where a server tells how large a window it has opened, if not in its list of models.
_WINDOWS = {"llama.cpp": "/props", "lmstudio": "/api/v0/models", "ollama": "/api/ps"}

# Any of them can be told to listen on the port of another. Whose the models are tells which one it is.
_OWNERS = {"library": "ollama", "llamacpp": "llama.cpp", "vllm": "vllm", "organization_owner": "lmstudio"}


async def find(timeout: float = 0.3, *, kinds: Sequence[Kind] = KINDS, host: str = HOST) -> list[Found]:
    """The servers that run now, in the order of `kinds`. Never raises: what does not answer in time is not there."""
    asked = await asyncio.gather(*(_ask(host, kind, timeout) for kind in kinds))
    return [found for found in asked if found is not None]


def read(kind: Kind, base_url: str, body: bytes) -> Found | None:
    """The server that gave this list of models; None if it is some other service on the same port."""
    try:
        models = msgspec.json.decode(body, type=_Models)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    listed = models.data or []
    if models.object != "list" or any(model.object not in ("model", "") for model in listed):
        return None
    # A window holds for all only where there is one model, or all say the same.
    windows = {_window(model) for model in listed}
    window = windows.pop() if len(windows) == 1 else None
    name = next((_OWNERS[model.owned_by] for model in listed if model.owned_by in _OWNERS), kind.name)
    return Found(name, base_url, tuple(model.id for model in listed), window)


def read_window(body: bytes) -> int | None:
    """The window a server says it has open, in any of the ways they say it; the smallest, if there are several."""
    try:
        told = msgspec.json.decode(body, type=_Props).default_generation_settings.n_ctx
        return told if told > 0 else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        running = msgspec.json.decode(body, type=_Running)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    told_by_each = [max(one.loaded_context_length, one.context_length) for one in (*running.data, *running.models)]
    return min((told for told in told_by_each if told > 0), default=None)


def _window(model: _Model) -> int | None:
    given = model.max_model_len or (model.meta.n_ctx if model.meta else None)
    return given if given and given > 0 else None


async def _ask(host: str, kind: Kind, timeout: float) -> Found | None:
    body = await _get(host, kind.port, "/v1/models", timeout)
    found = read(kind, f"http://{host}:{kind.port}/v1", body) if body is not None else None
    if found is None:
        return None
    found = msgspec.structs.replace(found, uids=socket_owners.owner_uids(kind.port))
    if found.window is not None or found.kind not in _WINDOWS:
        return found
    told = await _get(host, kind.port, _WINDOWS[found.kind], timeout)
    return msgspec.structs.replace(found, window=read_window(told)) if told is not None else found


async def _get(host: str, port: int, path: str, timeout: float) -> bytes | None:
    try:
        async with asyncio.timeout(timeout):
            return await _got(host, port, path)
    except (OSError, TimeoutError, EOFError, ValueError, asyncio.LimitOverrunError):
        return None


async def _got(host: str, port: int, path: str) -> bytes:
    """The body of a 200. Raises OSError, EOFError or ValueError for anything else."""
    reader, writer = await asyncio.open_connection(host, port, limit=LARGEST_ANSWER)
    try:
        # In HTTP/1.0 an answer ends with its connection; a server that sends it in chunks anyway is understood.
        request = f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nAccept: application/json\r\n\r\n"
        writer.write(request.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        if not first.startswith("HTTP/1.") or first.split(" ")[1:2] != ["200"]:
            raise ValueError("not a 200")
        return await _body(reader, _headers(lines))
    finally:
        writer.close()


def _headers(lines: Sequence[str]) -> dict[str, str]:
    pairs = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = b""
        while (size := int((await reader.readline()).partition(b";")[0], 16)) and len(body) < LARGEST_ANSWER:
            body += (await reader.readexactly(size + 2))[:-2]
        return body
    if "content-length" in headers:
        return await reader.readexactly(min(int(headers["content-length"]), LARGEST_ANSWER))
    return await reader.read(LARGEST_ANSWER)


def at(base_url: str) -> Kind | None:
    """The kind of server that is usually behind this address; None for an address elsewhere."""
    host, _, port = base_url.partition("://")[2].partition("/")[0].rpartition(":")
    if host not in ("127.0.0.1", "localhost", "[::1]"):
        return None
    return next((kind for kind in KINDS if str(kind.port) == port), None)
