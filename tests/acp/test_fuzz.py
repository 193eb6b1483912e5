"""Random requests and damaged lines get errors of the protocol and harm no session."""

from __future__ import annotations

import copy
import random
from collections.abc import Awaitable
from typing import Any

import pytest

from tests.support import acp_editor, rpc_fuzzing

CALLS = 150
CODES = {-32600, -32601, -32602, -32002}
ODD: list[Any] = [
    *rpc_fuzzing.ODD,
    [{"type": "smell"}],
    [{"type": "text"}],
    [{"type": "image", "data": "AAAA", "mimeType": "image/png"}],
    [{"type": "resource", "resource": {"uri": "", "blob": "?"}}],
    [{"name": "x", "command": "/no/such", "args": [], "env": []}],
    [{"type": "http", "name": "x", "url": "nowhere", "headers": []}],
]
VALID: dict[str, dict[str, Any]] = {
    "initialize": {"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    "authenticate": {"methodId": "x"},
    "session/new": {"cwd": "/", "mcpServers": [], "additionalDirectories": ["/"]},
    "session/load": {"sessionId": "?", "cwd": "/", "mcpServers": []},
    "session/resume": {"sessionId": "?", "cwd": "/", "mcpServers": []},
    "session/fork": {"sessionId": "?", "cwd": "/", "mcpServers": []},
    "session/list": {"cwd": "/", "cursor": "0"},
    "session/prompt": {"sessionId": "?", "prompt": [{"type": "text", "text": "Hello"}]},
    "session/set_mode": {"sessionId": "?", "modeId": "code"},
    "session/set_config_option": {"sessionId": "?", "configId": "mode", "value": "code"},
    "session/close": {"sessionId": "other"},
    "session/delete": {"sessionId": "other"},
    "session/dance": {"_meta": {}},
    "_vendor/thing": {"a": 1},
}


def random_request(rng: random.Random, session: str) -> tuple[str, Any]:
    """Return a request that mostly has odd parameters."""
    method = rng.choice(list(VALID))
    params: Any = copy.deepcopy(VALID[method])
    if params.get("sessionId") == "?":
        params["sessionId"] = session
    for name in list(params):
        match rng.randrange(8):
            case 0:
                del params[name]
            case 1 | 2:
                params[name] = rng.choice(ODD)
    if rng.random() < 0.1:
        params[rng.choice(["_meta", "odd", "session_id", "self"])] = rng.choice(ODD)
    return method, rng.choice(ODD) if rng.random() < 0.05 else params


async def check_response(method: str, params: Any, answering: Awaitable[Any]) -> None:
    answer = await answering
    error = answer.get("error")
    busy = error is not None and (error.get("data") or {}).get("type") == "Busy"
    assert error is None or error["code"] in CODES or busy, (method, params, answer)


@pytest.mark.parametrize("seed", range(3))
async def test_random_requests_get_errors_of_the_protocol(seed: int) -> None:
    rng = random.Random(seed)

    async with acp_editor.open_editor(["ok"] * 1000) as editor:
        safe, session = await editor.new(), await editor.new()
        assert await editor.prompt(safe, "Hello") == "end_turn"
        assert await editor.prompt(session, "Hello") == "end_turn"
        pending: list[tuple[str, Any, Awaitable[Any]]] = []
        for _ in range(CALLS):
            method, params = random_request(rng, session)
            pending.append((method, params, editor.put(method, params)))
            if rng.random() < 0.1:
                editor.notify("session/cancel", sessionId=rng.choice([session, "unknown"]))
            while pending and rng.random() < 0.7:
                await check_response(*pending.pop(rng.randrange(len(pending))))
        for each in pending:
            await check_response(*each)
        assert await editor.prompt(safe, "Still there?") == "end_turn"
