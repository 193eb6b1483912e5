"""What is answered to `initialize`: the version, and what works here. Pure, and without the SDK.

The SDK takes its time to load, so an editor is greeted before: nothing that is said here depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import util
from typing import Any

VERSION = 1
"""The only version of the protocol that is spoken here."""
NAME, TITLE = "holdfast", "Holdfast"


def capabilities() -> dict[str, Any]:
    """What an editor may ask for. Servers of tools at addresses need a part that may not be installed."""
    servers = util.find_spec("mcp") is not None
    return {
        "loadSession": True,
        "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
        "mcpCapabilities": {"http": servers, "sse": servers},
        "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "fork": {}, "additionalDirectories": {}},
    }


def answer(params: object, release: str) -> dict[str, Any] | None:
    """The result of `initialize`; None where the parameters are none.

    Whatever version is asked for, this one is answered: an editor that does not speak it leaves.
    """
    if not isinstance(params, Mapping):
        return None
    asked = params.get("protocolVersion")
    if isinstance(asked, bool) or not isinstance(asked, int) or not 0 <= asked <= 0xFFFF:
        return None
    return {
        "protocolVersion": VERSION,
        "agentCapabilities": capabilities(),
        "agentInfo": {"name": NAME, "title": TITLE, "version": release},
        "authMethods": [],
    }


def offered(params: object) -> dict[str, Any]:
    """What the editor can do, as it said; nothing where it did not say it properly."""
    said = params.get("clientCapabilities") if isinstance(params, Mapping) else None
    return dict(said) if isinstance(said, Mapping) else {}
