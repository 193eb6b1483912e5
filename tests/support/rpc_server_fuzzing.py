"""Random requests of several clients to the RPC server, some of them with odd parameters."""

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
ODD: list[Any] = [None, True, 0, -1, 2**63, 10**40, 1.5, [], ["x"], {"a": {"b": 1}}, {"images": [{"data": "AAAA"}]}]
ODD += ["", " ", "last", "\0", "\u200b\u202e", "\x1b[31m", "%s%n", "' OR 1=1 --", "../../etc", "x" * 5000]
ODD += ["/", "/undo 99999999999999999999", "/branch \n\t", "/compact --", "/title \0", "/queue drop -1"]
COMMANDS = ["/retry", "/stop", "/new T", "/queue", "/branch", "/undo", "/redo", "/compact", "/resume last"]
COMMANDS += ["/queue drop 1", "/queue drop all", "/steer x", "/title T", "/approve", "/status"]
REQUESTS: dict[str, dict[str, list[Any]]] = {
    "session.options": {"options": [{"columns": 30}, {"images": [IMAGE]}]},
    "session.title": {"title": [None, "A", "B"]},
    "session.steer": {"text": ["steer"]},
    "prompt.submit": {"text": ["Hello", "x" * 300], "images": [[], [], [IMAGE]]},
    "command.exec": {"line": COMMANDS},
}
NAMES = [*wire_types.METHODS, "session.create", "prompt.submit", "prompt.submit"]


async def send_concurrent_requests(rng: random.Random, count: int) -> None:
    """Check that every response is typed, every accepted prompt ends once, and nothing is left after the close."""
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
        fields = wire_types.METHODS[name].params.__struct_fields__
        params |= {"session_id": key} if "session_id" in fields else {}
        # A prompt with a known uid would end only once.
        params |= {each: rng.choice(ODD) for each in fields if each != "uid" and rng.random() < 0.1}
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
