"""Random requests to the RPC server: odd parameters of one client, and many valid requests of several at once.

Each function takes the random generator and the number of requests; it raises AssertionError for a wrong response.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from holdfast.rpc import frames
from holdfast.rpc_server import wire_types
from tests.support import rpc_client
from tests.support.compaction import FakeSummarizer
from tests.support.rpc_client import IMAGE

MAX_CONCURRENT = 25
TYPED = {frames.INVALID_PARAMS, wire_types.REFUSED, wire_types.NOT_OPEN, wire_types.NOT_FOUND}
ODD_NUMBERS: list[Any] = [None, True, 0, -1, 1, 2**31, 2**63, 10**40, 1.5, 1e308]
ODD_TEXTS = ["", " ", "last", "\0", "\u200b\u202e", "\x1b[31m", "%s%n", "' OR 1=1 --", "../../etc", "x" * 5000]
ODD_TEXTS += ["/", "/undo 99999999999999999999", "/new", "/branch \n\t", "/compact --", "/title \0", "/resume \u202e"]
ODD_VALUES = [[], [[]], ["x"], {}, {"a": {"b": 1}}, {"columns": 40}, {"images": [{"data": "AAAA"}]}, "/queue drop -1"]
ODD = [*ODD_NUMBERS, *ODD_TEXTS, *ODD_VALUES]
# These close the session, or wait for the model.
LEFT_OUT = {"session.close", "prompt.submit", "session.steer"}


async def send_odd_parameters(rng: random.Random, count: int) -> None:
    """Every response is typed, and another client is not affected."""
    methods = [each for each in wire_types.METHODS if each not in LEFT_OUT]
    async with rpc_client.connect(["ok"] * 500) as (server, client):
        other = await server.connect()
        safe, key = await other.start_conversation(), await client.start_conversation()
        for _ in range(count):
            name = rng.choice(methods)
            params = _odd_params(rng, wire_types.METHODS[name], key)
            response = await client.request(name, **params)
            assert "result" in response or response["error"]["code"] in TYPED, (name, params, response)
        assert (await other.prompt(safe, "Still there?"))["payload"]["status"] == "completed"
        assert (await other.call("session.history", session_id=safe))["last_seq"] == 4
        assert (await client.call("session.close", session_id=key))["session_id"]


def _odd_params(rng: random.Random, method: wire_types.Method, key: str) -> dict[str, Any]:
    """Return parameters of which some are valid, some odd, some missing and some unknown."""
    params: dict[str, Any] = {}
    for name in method.params.__struct_fields__:
        if name == "session_id" and rng.random() < 0.8:
            params[name] = key
        elif rng.random() < 0.7:
            params[name] = rng.choice(ODD)
    if rng.random() < 0.1:
        params[f"odd{rng.random()}"] = rng.choice(ODD)
    return params


COMMANDS = ["/retry", "/stop", "/new T", "/queue", "/branch", "/undo", "/redo", "/compact", "/resume last"]
COMMANDS += ["/queue drop 1", "/queue drop all", "/steer x", "/title T", "/approve", "/status"]
REQUESTS: dict[str, dict[str, list[Any]]] = {
    "session.options": {"options": [{"columns": 30}, {"images": [IMAGE]}]},
    "session.title": {"title": [None, "A", "B"]},
    "session.steer": {"text": ["steer"]},
    "prompt.submit": {"text": ["Hello", "x" * 300], "images": [[], [], [IMAGE]]},
    "command.exec": {"line": COMMANDS},
}
NAMES = ["create", "resume", "info", "history", "undo", "compress", "branch", "interrupt", "close"]
NAMES = [*REQUESTS, "prompt.submit", "prompt.submit", *(f"session.{name}" for name in NAMES)]


async def send_concurrent_requests(rng: random.Random, count: int) -> None:
    """Every accepted prompt ends once, and nothing is left when the server is closed."""
    async with rpc_client.connect(["ok"] * 10 * count, summarizer=FakeSummarizer()) as (server, client):
        crowd = Crowd(rng, [client, await server.connect(), await server.connect()])
        for _ in range(count // MAX_CONCURRENT):
            await asyncio.gather(*(crowd.send_one() for _ in range(MAX_CONCURRENT)))
        while busy := server.runtime.busy():
            await server.runtime.wait_idle(busy[0])
        await server.rpc.close()
        assert server.sessions == []
        for each in crowd.clients:
            ends = Counter(uid for uid, _ in each.completed)
            accepted = [uid for owner, uid in crowd.accepted if owner is each]
            assert {uid: ends[uid] for uid in accepted} == dict.fromkeys(accepted, 1)
        assert not server.runtime._states
        assert not server.runtime._titles


class Crowd:
    """Clients that send requests, to the sessions of each other too, and cancel some of them."""

    def __init__(self, rng: random.Random, clients: list[rpc_client.RpcClient]) -> None:
        self._rng, self.clients = rng, clients
        self._known: list[tuple[rpc_client.RpcClient, str]] = []
        self.accepted: list[tuple[rpc_client.RpcClient, str]] = []
        """The uid of every accepted prompt, with its client."""

    async def send_one(self) -> None:
        rng = self._rng
        await asyncio.sleep(rng.choice([0, 0, 0, 0.001, 0.01]))
        name = rng.choice(NAMES)
        client, key = rng.choice(self._known[-6:] or [(rng.choice(self.clients), "none")])
        if rng.random() < 0.1:
            client = rng.choice(self.clients)
        params = {each: rng.choice(values) for each, values in REQUESTS.get(name, {}).items()}
        if name != "session.create":
            params["session_id"] = key
        sent = client.request(name, **params)
        if rng.random() < 0.1:
            await asyncio.sleep(0)
            if not sent.done():
                client.cancel(sent)
        response = await sent
        if "error" in response:
            assert response["error"]["code"] in TYPED | {frames.CANCELLED}, (name, params, response)
            return
        result = response["result"]
        if opened := result if "conversation_id" in result else result.get("moved"):
            self._known.append((client, opened["session_id"]))
        if prompt := result if "queued" in result and "uid" in result else result.get("prompt"):
            self.accepted.append((client, prompt["uid"]))
