"""The WebSocket server: how connections are accepted, refused and closed, and how clients share it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol

from holdfast import errors
from holdfast.rpc import admission, frames, peer, websocket_transport
from tests.support import polling, rpc_fuzzing, rpc_peers
from tests.support.rpc_peers import notification, request

TOKEN = "a-token-of-some-length"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
RULES = admission.AdmissionRules(TOKEN)
SMALL = frames.FrameLimits(max_bytes=2_000, max_running=4, busy_seconds=1_000.0)


class Server:
    """A running server, its peers and the methods they serve."""

    def __init__(self, limits: frames.FrameLimits) -> None:
        self.limits, self.address = limits, ""
        self.methods = rpc_peers.FakeClient()
        self.peers: list[peer.Peer] = []

    async def connected(self, channel: websocket_transport.WebSocketChannel) -> None:
        self.peers.append(made := peer.Peer(channel, self.methods.methods, self.limits))
        await made.run()

    @property
    def port(self) -> int:
        return int(self.address.rstrip("/").rpartition(":")[2])

    def connect(self, **given: Any) -> connect:
        return connect(self.address, **{"additional_headers": BEARER, "compression": None, "proxy": None, **given})


@asynccontextmanager
async def serve(limits: frames.FrameLimits = SMALL, rules: admission.AdmissionRules = RULES) -> AsyncIterator[Server]:
    server = Server(limits)
    async with (
        asyncio.timeout(rpc_peers.TIMEOUT_SECONDS),
        websocket_transport.serve(server.connected, rules, max_bytes=limits.max_bytes) as server.address,
    ):
        yield server


async def call(connection: ClientConnection, message: object) -> Any:
    await connection.send(json.dumps(message))
    return json.loads(await connection.recv())


async def close_code(connection: ClientConnection) -> int | None:
    await connection.wait_closed()
    return connection.close_code


async def refusal(connecting: connect) -> int:
    with pytest.raises(InvalidStatus) as refused:
        await connecting
    return refused.value.response.status_code


async def test_connection_carries_requests_batches_cancellations_and_notifications() -> None:
    async with serve() as server, server.connect() as connection:
        assert await call(connection, request(1, "echo", ["ä"])) == {"jsonrpc": "2.0", "id": 1, "result": ["ä"]}
        assert (await call(connection, "nonsense"))["error"]["code"] == frames.INVALID_REQUEST
        assert [each["id"] for each in await call(connection, [request(1, "echo"), request(2, "echo")])] == [1, 2]
        await connection.send(json.dumps(request(3, "wait")))
        assert (await call(connection, notification(peer.CANCEL, {"id": 3})))["error"]["code"] == frames.CANCELLED
        await connection.send(json.dumps(request(4, "count", [2])))
        assert [json.loads(await connection.recv()).get("params") for _ in range(3)] == [[0], [1], None]


async def test_token_in_a_subprotocol_is_accepted_and_not_echoed() -> None:
    rules = admission.AdmissionRules(TOKEN, origins=frozenset({"https://example.org"}))
    offered = [Subprotocol("holdfast.rpc"), Subprotocol(f"holdfast.token.{TOKEN}")]
    given = {"additional_headers": {}, "subprotocols": offered, "origin": "https://example.org"}
    async with serve(rules=rules) as server, server.connect(**given) as connection:
        assert connection.subprotocol == "holdfast.rpc"
        assert (await call(connection, request(1, "echo", [])))["result"] == []


async def test_refused_request_gets_no_connection() -> None:
    async with serve() as server:
        assert await refusal(server.connect(additional_headers={})) == 401
        assert await refusal(server.connect(origin="https://example.org")) == 403
        assert server.peers == []


async def test_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_transport, "MAX_CONNECTIONS", 1)
    async with serve() as server:
        async with server.connect() as first:
            await call(first, request(1, "echo"))
            assert await refusal(server.connect()) == 503

        async def reconnect() -> int:
            with suppress(InvalidStatus):
                await (await server.connect()).close()
            return len(server.peers) > 1

        await polling.until_async(reconnect)  # The slot is free a little after the close.


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (Frame(Opcode.TEXT, b"x" * 2_001).serialize(mask=True), 1009),
        (Frame(Opcode.BINARY, b"{}").serialize(mask=True), 1003),
        (Frame(Opcode.TEXT, b'"\xff"').serialize(mask=True), 1007),
        (b"\xff" * 20, 1002),
    ],
    ids=["too large", "binary", "no UTF-8", "no frame"],
)
async def test_invalid_data_closes_its_connection_only(data: bytes, code: int) -> None:
    async with serve() as server, server.connect() as other:
        async with server.connect() as connection:
            connection.transport.write(data)
            assert await close_code(connection) == code
        assert (await call(other, request(1, "echo", [])))["result"] == []
        assert [each.closed.is_set() for each in server.peers] == [False, True]


async def test_shutdown_closes_connections_and_cancels_requests() -> None:
    async with serve() as server:
        connection = await server.connect()
        await connection.send(json.dumps(request(1, "wait", [])))
        await polling.until_async(lambda: server.methods.started)
    assert await close_code(connection) == 1001
    assert server.methods.ended == [[]]


async def test_silent_disconnect_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PING_SECONDS", "PONG_SECONDS", "CLOSE_SECONDS"):
        monkeypatch.setattr(websocket_transport, name, 0.01)
    async with serve() as server:
        connection = await server.connect()
        connection.transport.pause_reading()
        await polling.until_async(lambda: server.peers)
        await polling.until_async(server.peers[0].closed.is_set)
        connection.transport.abort()


async def test_invalid_token_host_and_port_are_refused() -> None:
    async with serve() as server:
        for rules, port, why in (
            (admission.AdmissionRules("short"), 0, "at least 16 ASCII characters"),
            (admission.AdmissionRules(TOKEN, host="no host"), 0, "not an address of this machine"),
            (RULES, server.port, "Cannot listen on"),
        ):
            with pytest.raises(errors.SettingInvalid, match=why):
                async with websocket_transport.serve(server.connected, rules, port):
                    pass


async def send_endless_requests(hostile: ClientConnection, server: Server) -> None:
    for number in range(20):
        await hostile.send(json.dumps(request(number, "wait", [number])))
    await polling.until_async(lambda: len(server.methods.started) == SMALL.max_running)


async def read_nothing(hostile: ClientConnection, server: Server) -> None:
    hostile.transport.pause_reading()
    await hostile.send(json.dumps(request(1, "count", [50_000])))
    await rpc_peers.settle(500)


async def send_unfinished_message(hostile: ClientConnection, server: Server) -> None:
    message = Frame(Opcode.TEXT, b'{"jsonrpc"', fin=False).serialize(mask=True)
    hostile.transport.write(message + Frame(Opcode.CONT, b"x" * 1_000, fin=False).serialize(mask=True)[:-1])
    await rpc_peers.settle()


Attack = Callable[[ClientConnection, Server], Awaitable[None]]


@pytest.mark.parametrize("attack", [send_endless_requests, read_nothing, send_unfinished_message])
async def test_hostile_client_does_not_affect_another(attack: Attack) -> None:
    async with serve(frames.FrameLimits(max_bytes=2_000, max_running=4, busy_seconds=0.0)) as server:
        hostile = await server.connect()
        await attack(hostile, server)
        async with server.connect() as other:
            for number in range(50):
                assert (await call(other, request(number, "echo", [number])))["result"] == [number]
            assert len(await call(other, [request(number, "echo") for number in range(4)])) == 4
        # The hostile client was not disconnected meanwhile.
        assert not server.peers[0].closed.is_set()
        hostile.transport.abort()
        await polling.until_async(server.peers[0].closed.is_set)


async def test_large_burst_of_one_client_takes_turns_with_another() -> None:
    async with serve() as server, server.connect() as hostile, server.connect() as other:
        burst = [*[notification("nothing")] * 3_000, notification("wait", ["last"])]
        packet = b"".join(Frame(Opcode.TEXT, json.dumps(each).encode()).serialize(mask=True) for each in burst)
        hostile.transport.write(packet)
        assert (await call(other, request(1, "echo", [])))["result"] == []
        assert server.methods.started == []
        await polling.until_async(lambda: server.methods.started == [["last"]])


@pytest.mark.parametrize("valid_head", [True, False])
async def test_server_survives_any_connection(valid_head: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_transport, "CLOSE_SECONDS", 0.05)
    assert await rpc_fuzzing.open_connections(random.Random(7), 40, valid_head) >= valid_head
