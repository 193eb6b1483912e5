"""WebSocket: foreign connections to the real server, how they are refused, and how each one ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from websockets.asyncio import client
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol

from holdfast import errors
from holdfast.rpc import admission, frames, peer, websocket_transport
from tests.support import polling, rpc_peers
from tests.support.rpc_peers import notification, request

TOKEN = "a-token-of-some-length"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
SMALL = frames.FrameLimits(max_bytes=2_000, max_running=4, busy_seconds=1_000.0)


class Served:
    """A server, and what its clients may ask."""

    def __init__(self, limits: frames.FrameLimits) -> None:
        self.limits, self.address = limits, ""
        self.other = rpc_peers.Other(rpc_peers.Memory())
        self.peers: list[peer.Peer] = []

    async def connected(self, channel: websocket_transport.WebSocketChannel) -> None:
        self.peers.append(made := peer.Peer(channel, self.other.methods, self.limits))
        await made.run()

    def connect(self, **given: Any) -> client.connect:
        return client.connect(
            self.address, **{"additional_headers": BEARER, "compression": None, "proxy": None, **given}
        )


def run(
    story: Callable[[Served], Awaitable[None]],
    limits: frames.FrameLimits = SMALL,
    rules: admission.AdmissionRules = admission.AdmissionRules(TOKEN),  # noqa: B008
) -> Served:
    served = Served(limits)

    async def tell() -> None:
        async with (
            asyncio.timeout(rpc_peers.PATIENCE),
            websocket_transport.serve(served.connected, rules, max_bytes=limits.max_bytes) as served.address,
        ):
            await story(served)

    asyncio.run(tell())
    return served


async def ask(connection: client.ClientConnection, said: object) -> Any:
    await connection.send(json.dumps(said))
    return json.loads(await connection.recv())


async def code(connection: client.ClientConnection) -> int | None:
    """How it was ended, by the other side."""
    await connection.wait_closed()
    return connection.close_code


async def refusal(connecting: client.connect) -> int:
    with pytest.raises(InvalidStatus) as refused:
        await connecting
    return refused.value.response.status_code


def test_a_program_asks_is_answered_and_told_things() -> None:
    async def story(served: Served) -> None:
        async with served.connect() as connection:
            assert await ask(connection, request(1, "echo", ["ä"])) == {"jsonrpc": "2.0", "id": 1, "result": ["ä"]}
            assert (await ask(connection, "nonsense"))["error"]["code"] == frames.INVALID_REQUEST
            assert [each["id"] for each in await ask(connection, [request(1, "echo"), request(2, "echo")])] == [1, 2]
            await connection.send(json.dumps(request(3, "wait")))
            assert (await ask(connection, notification(peer.CANCEL, {"id": 3})))["error"]["code"] == frames.CANCELLED
            await connection.send(json.dumps(request(4, "count", [2])))
            assert [json.loads(await connection.recv()).get("params") for _ in range(3)] == [[0], [1], None]

    run(story)


def test_a_page_says_the_token_by_the_subprotocol_and_it_is_not_said_back() -> None:
    async def story(served: Served) -> None:
        offered = [Subprotocol("holdfast.rpc"), Subprotocol(f"holdfast.token.{TOKEN}")]
        given = {"additional_headers": {}, "subprotocols": offered, "origin": "https://example.org"}
        async with served.connect(**given) as connection:
            assert connection.subprotocol == "holdfast.rpc"
            assert (await ask(connection, request(1, "echo", [])))["result"] == []

    run(story, rules=admission.AdmissionRules(TOKEN, origins=frozenset({"https://example.org"})))


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (401, {}),
        (401, {"Authorization": "Bearer wrong"}),
        (403, {**BEARER, "Origin": "https://example.org"}),
    ],
)
def test_who_is_not_let_in_never_has_a_connection(status: int, headers: dict[str, str]) -> None:
    async def story(served: Served) -> None:
        assert await refusal(served.connect(additional_headers=headers)) == status
        assert served.peers == []

    run(story)


def test_a_name_that_leads_here_is_no_way_in() -> None:
    async def story(served: Served) -> None:
        port = int(served.address.rstrip("/").rpartition(":")[2])
        served.address = "ws://rebound.example.org/"
        assert await refusal(served.connect(host="127.0.0.1", port=port)) == 421

    run(story)


def test_as_many_are_let_in_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_transport, "MAX_CONNECTIONS", 1)

    async def story(served: Served) -> None:
        async with served.connect() as first:
            await ask(first, request(1, "echo"))
            assert await refusal(served.connect()) == 503
        await polling.until_async(served.peers[0].closed.is_set)

        async def again() -> client.ClientConnection:
            while True:
                try:
                    return await served.connect()
                except InvalidStatus:
                    continue

        second = await again()
        assert (await ask(second, request(1, "echo", [])))["result"] == []
        await second.close()

    run(story)


def test_how_a_connection_ends_says_why_and_no_other_is_harmed() -> None:
    async def story(served: Served) -> None:
        async with served.connect() as whole:
            async with served.connect() as connection:
                await connection.send("x" * 2_001)
                assert await code(connection) == 1009
            async with served.connect() as connection:
                await connection.send(b"{}")
                assert await code(connection) == 1003
            async with served.connect() as connection:
                connection.transport.write(Frame(Opcode.TEXT, b'"\xff"').serialize(mask=True))
                assert await code(connection) == 1007
            async with served.connect() as connection:
                connection.transport.write(b"\xff" * 20)
                assert await code(connection) == 1002
            assert (await ask(whole, request(1, "echo", [])))["result"] == []
        assert [each.closed.is_set() for each in served.peers[1:]] == [True] * 4

    run(story)


async def test_when_the_server_ends_its_clients_are_told_and_what_runs_is_cancelled() -> None:
    found = list[int | None]()
    served = Served(SMALL)
    async with websocket_transport.serve(served.connected, admission.AdmissionRules(TOKEN)) as served.address:
        connection = await served.connect()
        await connection.send(json.dumps(request(1, "wait", [])))
        await polling.until_async(lambda: served.other.begun)
    found.append(await code(connection))
    assert served.other.ended == [[]]
    assert found == [1001]


def test_a_client_that_is_gone_without_a_word_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_transport, "PING_SECONDS", 0.01)
    for name in ("PONG_SECONDS", "CLOSE_SECONDS"):
        monkeypatch.setattr(websocket_transport, name, 0.01)

    async def story(served: Served) -> None:
        connection = await served.connect()
        connection.transport.pause_reading()  # It neither reads nor says anything any more.
        await polling.until_async(lambda: served.peers)
        await polling.until_async(served.peers[0].closed.is_set)
        connection.transport.abort()

    run(story)


def test_who_does_not_read_is_not_read_from() -> None:
    async def story(served: Served) -> None:
        async with served.connect() as connection:
            connection.transport.pause_reading()
            sent = list[int]()
            sending = asyncio.create_task(flood(connection, sent))
            before, same = 0, 0
            # It takes no more when it took nothing for many turns.
            while same < 500:
                await asyncio.sleep(0)
                same = same + 1 if len(sent) == before else 0
                before = len(sent)
            assert not sending.done()
            connection.transport.resume_reading()
            for _ in range(FLOOD):
                await connection.recv()
            await sending

    run(story, frames.FrameLimits(max_running=4, busy_seconds=1_000.0))


async def asks_without_end(hostile: client.ClientConnection, served: Served) -> None:
    for number in range(20):
        await hostile.send(json.dumps(request(number, "wait", [number])))
    await polling.until_async(lambda: len(served.other.begun) == SMALL.max_running)


async def reads_nothing(hostile: client.ClientConnection, served: Served) -> None:
    hostile.transport.pause_reading()
    await hostile.send(json.dumps(request(1, "count", [199_999])))
    await rpc_peers.settled(500)


async def never_comes_to_an_end(hostile: client.ClientConnection, served: Served) -> None:
    message = Frame(Opcode.TEXT, b'{"jsonrpc"', fin=False).serialize(mask=True)
    hostile.transport.write(message + Frame(Opcode.CONT, b"x" * 1_000, fin=False).serialize(mask=True)[:-1])
    await rpc_peers.settled()


async def talks_nonsense(hostile: client.ClientConnection, served: Served) -> None:
    worst = [b"[" * 60 + b"]" * 60, b'["",[],[[]]]', b'["a","', b'\\"[', b"9"]
    for each in worst:
        await hostile.send((each * 2_000)[: SMALL.max_bytes], text=True)
        assert json.loads(await hostile.recv())["error"]["code"] in (frames.PARSE_ERROR, frames.INVALID_REQUEST)
    await hostile.send(json.dumps([request(number, "wait", []) for number in range(SMALL.max_running)]))
    await polling.until_async(lambda: len(served.other.begun) == SMALL.max_running)


@pytest.mark.parametrize("does", [asks_without_end, reads_nothing, never_comes_to_an_end, talks_nonsense])
def test_whatever_one_client_does_another_is_answered(
    does: Callable[[client.ClientConnection, Served], Awaitable[None]],
) -> None:
    async def story(served: Served) -> None:
        hostile = await served.connect()
        await does(hostile, served)
        async with served.connect() as other:
            for number in range(50):
                assert (await ask(other, request(number, "echo", [number])))["result"] == [number]
            batch = [request(number, "echo") for number in range(SMALL.max_running)]
            assert len(await ask(other, batch)) == SMALL.max_running
        # It is still at it, and was not served at the cost of being cut off.
        assert not served.peers[0].closed.is_set()
        hostile.transport.abort()
        await polling.until_async(served.peers[0].closed.is_set)

    run(story, frames.FrameLimits(max_bytes=SMALL.max_bytes, max_running=SMALL.max_running, busy_seconds=0.0))


def test_who_says_much_at_once_is_heard_in_turn_with_others() -> None:
    async def story(served: Served) -> None:
        async with served.connect() as hostile, served.connect() as other:
            said = [*[notification("nothing")] * 3_000, notification("wait", ["last"])]
            packet = b"".join(Frame(Opcode.TEXT, json.dumps(each).encode()).serialize(mask=True) for each in said)
            hostile.transport.write(packet)
            assert (await ask(other, request(1, "echo", [])))["result"] == []
            assert served.other.begun == []
            await polling.until_async(lambda: served.other.begun == [["last"]])

    run(story)


FLOOD = 80


async def flood(connection: client.ClientConnection, sent: list[int]) -> None:
    frame = json.dumps(request(None, "echo", ["x" * 500_000]))
    for number in range(FLOOD):
        await connection.send(frame)
        sent.append(number)


async def test_a_fault_of_ours_in_a_connection_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: websocket_transport.WebSocketChannel) -> None:
        raise AssertionError("ours")

    served = Served(SMALL)
    async with (
        websocket_transport.serve(fail, admission.AdmissionRules(TOKEN)) as served.address,
        served.connect() as connection,
    ):
        assert await code(connection) == 1011
    assert [each.getMessage() for each in caplog.records if each.name == "holdfast.rpc.websocket_transport"] == [
        "connection handler failed"
    ]
    caplog.clear()


async def test_a_token_that_can_be_guessed_and_a_port_that_is_taken_are_refused() -> None:
    served = Served(SMALL)
    with pytest.raises(errors.SettingInvalid, match="at least 16 ASCII characters"):
        async with websocket_transport.serve(served.connected, admission.AdmissionRules("short")):
            pass
    with pytest.raises(errors.SettingInvalid, match="not an address of this machine"):
        async with websocket_transport.serve(served.connected, admission.AdmissionRules(TOKEN, host="no host")):
            pass
    async with websocket_transport.serve(served.connected, admission.AdmissionRules(TOKEN)) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        with pytest.raises(errors.SettingInvalid, match="Cannot listen on"):
            async with websocket_transport.serve(served.connected, admission.AdmissionRules(TOKEN), port):
                pass
