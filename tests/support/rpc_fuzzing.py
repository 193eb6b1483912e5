"""Random frames, bytes and connections for the line transport of a peer and its WebSocket server, and random requests.

Each function takes the random generator and the number of tries; it raises AssertionError for a wrong response.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections import Counter
from typing import Any

from holdfast.rpc import admission, frames, line_transport, peer, websocket_transport
from holdfast.rpc_server import wire_types
from tests.support import rpc_client, rpc_peers
from tests.support.compaction import FakeSummarizer
from tests.support.rpc_client import IMAGE
from tests.support.rpc_peers import notification, request

KNOWN = {frames.PARSE_ERROR, frames.INVALID_REQUEST, frames.METHOD_NOT_FOUND, frames.INVALID_PARAMS}
KNOWN |= {frames.CANCELLED, frames.FAILED, -32050}
LIMITS = frames.FrameLimits(max_bytes=4_000, busy_seconds=1_000.0)
TOKEN = "a-token-of-some-length"
HEAD = (
    "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
).encode()
VALID_FRAMES = [
    json.dumps(each).encode()
    for each in (
        request(1, "echo", ["a", {"b": [1.5, None, True]}]),
        request("x", "echo", {"text": 'Grüße, 世界 \U0001f600 \\ " \n'}),
        request(None, "echo", []),
        request(10**40, "nothing"),
        request(2, "refuse", {"a": [[[[]]]]}),
        request(3, "miss"),
        request(4, "count", [3]),
        notification("echo", {"a": 1}),
        notification("$/cancelRequest", {"id": 1}),
        [request(5, "echo"), notification("echo"), request(6, "refuse")],
        {"jsonrpc": "2.0", "id": 7, "result": {}},
    )
]
INSERTED = [b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\\ud800", b"1e999", *(bytes([each]) for each in b'"\\{}[]:,')]
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


def mutate_frame(rng: random.Random) -> bytes:
    """Return a valid frame that was changed in a few places."""
    frame = rng.choice(VALID_FRAMES)
    for _ in range(rng.randint(1, 4)):
        start, end = sorted(rng.choices(range(len(frame) + 1), k=2))
        changes = [
            frame[:start] + bytes([rng.randrange(256)]) + frame[start + 1 :],
            frame[:start] + frame[end:],
            frame[:end] + frame[start:],
            frame[:start] + rng.choice(INSERTED) * rng.choice([1, 1, 2, 70]) + frame[start:],
            frame[:start],
            frame[:start] + rng.choice(VALID_FRAMES)[start:],
            b"[" + frame + b"," + rng.choice(VALID_FRAMES) + b"]",
        ]
        frame = rng.choice(changes)
    return frame


def _check(said: Any) -> list[Any]:
    """Check a response, a batch of them or a notification, and return all."""
    every = said if isinstance(said, list) else [said]
    for each in every:
        assert each["jsonrpc"] == "2.0"
        if "method" in each:
            assert each["method"] == "number"
            continue
        assert {*each} in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"})
        assert "error" not in each or (each["error"]["code"] in KNOWN and each["error"]["message"]), each
    return every


async def send_lines(rng: random.Random, count: int) -> int:
    """Send frames as lines of a socket while another request is running; return the number of responses."""
    ours, theirs = socket.socketpair()
    client, responses = rpc_peers.FakeClient(), list[Any]()
    async with asyncio.timeout(rpc_peers.TIMEOUT_SECONDS):
        reader, writer = await asyncio.open_connection(sock=theirs)
        async with line_transport.open_lines(ours.fileno(), ours.fileno(), LIMITS.max_bytes) as channel:
            running = asyncio.create_task(peer.Peer(channel, client.methods, LIMITS).run())

            async def send(*frames: bytes, until: str) -> None:
                writer.write(b"\n".join(frames) + b"\n")
                while until not in [each.get("id") for each in responses]:
                    responses.extend(_check(json.loads(await reader.readline())))

            writer.write(json.dumps(request("held", "wait", ["held"])).encode() + b"\n")
            for number in range(count // 50):
                alive = json.dumps(request(f"alive-{number}", "echo", [number])).encode()
                await send(*(mutate_frame(rng) for _ in range(50)), b"", alive, until=f"alive-{number}")
            assert (client.started, client.ended) == ([["held"]], [])
            client.proceed.set()
            await send(b"", until="held")
            writer.close()
            await running
    ours.close()
    return len(responses)


async def open_connections(rng: random.Random, count: int, valid_head: bool) -> int:
    """Open connections with broken heads, or with valid ones and broken frames; return how many were accepted."""
    client, peers = rpc_peers.FakeClient(), list[peer.Peer]()

    async def connected(channel: websocket_transport.WebSocketChannel) -> None:
        peers.append(made := peer.Peer(channel, client.methods, LIMITS))
        await made.run()

    rules = admission.AdmissionRules(TOKEN)
    async with asyncio.timeout(rpc_peers.TIMEOUT_SECONDS):
        async with websocket_transport.serve(connected, rules, max_bytes=LIMITS.max_bytes) as address:
            port = int(address.rstrip("/").rpartition(":")[2])
            for _ in range(count):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                head = HEAD if valid_head else _break_head(rng)
                writer.write(head + b"".join(_build_websocket_frame(rng) for _ in range(5)))
                writer.write_eof()
                await reader.read()
                writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEAD)
            assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
            writer.close()
    assert all(each.closed.is_set() for each in peers)
    return len(peers)


def _break_head(rng: random.Random) -> bytes:
    at = rng.randrange(len(HEAD))
    return HEAD[:at] + rng.choice([b"", b"\x00", b"\r\n", b"\xff" * 3, b"x" * 9_000]) + HEAD[at + rng.randrange(3) :]


def _build_websocket_frame(rng: random.Random) -> bytes:
    """Return a message in a WebSocket frame, with a mask of zeros, and sometimes a wrong first byte or length."""
    payload = mutate_frame(rng)[:125]
    first = rng.choice([0x81, 0x81, 0x81, 0x82, 0x01, 0x80, 0x88, 0x89, 0x8A, 0xC1, rng.randrange(256)])
    length = rng.choice([len(payload)] * 6 + [126, 127, rng.randrange(128)])
    return bytes([first, 0x80 | length, 0, 0, 0, 0]) + payload


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
