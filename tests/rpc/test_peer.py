"""A peer: every request gets one response, notifications none, and no client can exhaust it."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from holdfast import errors
from holdfast.rpc import frames, peer
from tests.support import polling, rpc_fuzzing, rpc_peers
from tests.support.rpc_peers import notification, request

BLOCKING = frames.FrameLimits(max_running=2, busy_seconds=1_000.0)
REFUSING = frames.FrameLimits(max_running=2, busy_seconds=0.0)
DRAINING = frames.FrameLimits(drain_seconds=1_000.0)


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("nothing", {"code": frames.METHOD_NOT_FOUND, "message": "Unknown method: 'nothing'."}),
        ("refuse", {"code": -32050, "message": "Not today.", "data": {"a": 1}}),
        ("miss", {"code": frames.FAILED, "message": "There is no session 'x'.", "data": {"type": "NoSuchSession"}}),
        ("break", {"code": frames.INTERNAL_ERROR, "message": "Internal error."}),
        ("no_json", {"code": frames.INTERNAL_ERROR, "message": "Internal error."}),
    ],
)
async def test_failed_request_gets_an_error_code(method: str, error: dict[str, Any]) -> None:
    async with rpc_peers.open_peer() as client:
        assert await client.call(1, method, {"a": 1}) == {"jsonrpc": "2.0", "id": 1, "error": error}
        assert (await client.call(2, "echo", []))["result"] == []


async def test_notifications_and_responses_get_no_response() -> None:
    async with rpc_peers.open_peer() as client:
        for method in ("echo", "nothing", "refuse", "break", "no_json", "$/cancelRequest"):
            client.send(notification(method, {"id": 9}))
        client.send({"jsonrpc": "2.0", "id": 1, "result": 1}, notification("wait", ["received"]))
        assert (await client.call(2, "echo", []))["id"] == 2
        assert client.started == [["received"]]


async def test_requests_start_in_order_and_no_more_is_read_while_the_maximum_is_running() -> None:
    async with rpc_peers.open_peer(frames.FrameLimits(max_running=20, busy_seconds=1_000.0)) as client:
        client.send(*(request(number, "wait", [number]) for number in range(30)))
        await rpc_peers.settle()
        assert (client.started, client.channel.received_count) == ([[number] for number in range(20)], 21)
        client.proceed.set()
        assert {(await client.receive())["id"] for _ in range(30)} == set(range(30))


async def test_batch_is_answered_in_one_frame_without_its_notifications() -> None:
    async with rpc_peers.open_peer() as client:
        client.send([notification("echo"), notification("nothing")], [])
        found = await client.receive()
        assert (found["id"], found["error"]["code"]) == (None, frames.INVALID_REQUEST)
        client.send([request(1, "echo"), notification("echo"), 7, request(2, "nothing"), request("x", "refuse", [])])
        assert [(each["id"], each.get("error", {}).get("code")) for each in await client.receive()] == [
            (1, None),
            (None, frames.INVALID_REQUEST),
            (2, frames.METHOD_NOT_FOUND),
            ("x", -32050),
        ]


async def test_rest_of_a_batch_with_too_large_responses_is_refused_and_not_run() -> None:
    async with rpc_peers.open_peer(frames.FrameLimits(max_bytes=8_000, max_running=4, busy_seconds=0.1)) as client:
        # The request of a batch that has ended does not use a slot.
        client.send(request(0, "wait", []), [request(1, "wait", []), request(3, "echo", [])])
        await polling.until_async(lambda: len(client.started) == 2)
        await rpc_peers.settle()  # until the slot of the ended request is free
        client.send([request(number, "give", [5_000]) for number in range(10, 13)])
        # Both free slots were used before the responses were too large.
        codes = [each.get("error", {}).get("code") for each in await client.receive()]
        assert codes == [None, None, frames.BUSY]
        assert (await client.call(2, "give", [5_000]))["id"] == 2


async def test_unread_responses_of_batches_are_limited_by_their_size() -> None:
    limits = frames.FrameLimits(max_bytes=8_000, max_running=8, busy_seconds=1_000.0)
    async with rpc_peers.open_peer(limits, capacity=1) as client:
        for number in range(0, 100, 2):
            client.send([request(number, "give", [3_000]), request(number + 1, "give", [3_000])])
        await rpc_peers.settle(500)
        # One batch was sent; the responses of those that ran meanwhile are too large for another.
        assert len(client.started) <= 2 + 8
        for number in range(0, 100, 2):
            assert [each["id"] for each in await client.receive()] == [number, number + 1]


async def test_cancelled_request_gets_one_response_and_no_other_is_affected() -> None:
    async with rpc_peers.open_peer() as client:
        client.send(request(0, "wait", []), notification(peer.CANCEL, {"id": 0}))  # It has not started yet.
        assert (await client.receive())["error"]["code"] == frames.CANCELLED
        client.send(request(1, "wait", ["a"]), request(2, "wait", ["b"]))
        await polling.until_async(lambda: ["b"] in client.started)
        client.send(notification(peer.CANCEL, {"id": 1}), notification(peer.CANCEL, {"id": 1}))
        found = await client.receive()
        assert (found["id"], found["error"]["code"]) == (1, frames.CANCELLED)
        assert client.ended[-1] == ["a"]
        client.proceed.set()
        assert (await client.receive())["id"] == 2
        assert (await client.call(1, "echo", []))["result"] == []


async def test_id_in_use_is_refused_and_the_other_request_is_answered() -> None:
    async with rpc_peers.open_peer() as client:
        client.send(request(1, "wait", []), request(1, "echo", []), request(1.0, "echo", []))
        for _ in range(2):
            found = await client.receive()
            assert (found["id"], found["error"]["code"]) == (None, frames.INVALID_REQUEST)
            assert found["error"]["data"] == {"id": 1}
        assert (await client.call("1", "echo", []))["result"] == []
        client.proceed.set()
        assert (await client.receive())["result"] == []
        assert (await client.call(1, "echo", [2]))["result"] == [2]


names = strategies.none() | strategies.integers(0, 4) | strategies.sampled_from(["0", "a"])
methods = strategies.sampled_from(["echo", "wait", "refuse", "miss", "no_json", "nothing"])
requests = strategies.builds(request, names, methods)
notifications = strategies.builds(notification, methods)
cancellations = strategies.builds(lambda name: notification(peer.CANCEL, {"id": name}), names)
singles = strategies.one_of(requests, notifications, cancellations, strategies.just({"jsonrpc": "2.0", "id": "bad"}))


@hypothesis.given(strategies.lists(singles | strategies.lists(singles, min_size=1, max_size=4), max_size=12))
def test_any_requests_get_one_response_each(messages: list[Any]) -> None:
    sent = [*messages, request("last", "echo", [])]
    expected = [[each for each in (frame if isinstance(frame, list) else [frame]) if "id" in each] for frame in sent]

    async def check() -> None:
        async with rpc_peers.open_peer(frames.FrameLimits(max_running=100)) as client:
            client.send(*sent)
            await polling.until_async(client.channel.inbound.empty)
            await rpc_peers.settle()
            client.proceed.set()
            responses = list[Any]()
            for _ in range(sum(map(bool, expected))):
                received = await client.receive()
                responses += received if isinstance(received, list) else [received]
            await rpc_peers.settle()
            assert client.channel.sent.empty()
            answered = [_request_id(each) for each in responses]
            assert sorted(map(repr, answered)) == sorted(repr(each["id"]) for frame in expected for each in frame)

    asyncio.run(check())


def _request_id(response: Any) -> Any:
    """Return the id of the answered request; if it was in use, the error has it in its data."""
    error = response.get("error", {})
    in_use = error.get("code") == frames.INVALID_REQUEST and isinstance(error.get("data"), dict)
    return error["data"]["id"] if response["id"] is None and in_use else response["id"]


async def test_busy_peer_refuses_requests_and_accepts_cancellations() -> None:
    async with rpc_peers.open_peer(REFUSING) as client:
        client.send(request(1, "wait", []), request(2, "wait", []), request(3, "echo", []), [request(4, "echo", [])])
        for found in (await client.receive(), *(await client.receive())):
            assert (found["id"] in (3, 4), found["error"]["code"]) == (True, frames.BUSY)
        client.send(notification("wait"), notification(peer.CANCEL, {"id": 1}))
        assert (await client.receive())["error"]["code"] == frames.CANCELLED
        assert (await client.call(5, "echo", []))["result"] == []


UNREAD: dict[str, tuple[frames.FrameLimits, list[object]]] = {
    "responses": (BLOCKING, [request(None, "echo", ["x" * 1000])]),
    "batches": (BLOCKING, [[request(None, "echo", [])]]),
    "errors": (REFUSING, [b"nonsense", b"[]", b'{"jsonrpc":"2.0","id":1,"method":"none"}']),
}


@pytest.mark.parametrize("kind", UNREAD)
async def test_client_that_does_not_read_is_not_read_from(kind: str) -> None:
    limits, messages = UNREAD[kind]
    async with rpc_peers.open_peer(limits, capacity=1) as client:
        client.send(*messages * 300)
        await rpc_peers.settle(500)
        assert client.channel.received_count < 10
        received = [json.dumps(await client.receive()) for _ in range(300 * len(messages))]
        assert received == received[: len(messages)] * 300


async def test_disconnect_cancels_running_requests_and_closes_the_peer() -> None:
    async with rpc_peers.open_peer() as client:
        client.send(request(1, "wait", []), notification("wait"), [request(2, "wait", [])])
        await polling.until_async(lambda: len(client.started) == 3)
        assert not client.peer.closed.is_set()
        client.disconnect()
        await client.wait_closed()
        assert len(client.ended) == 3
        assert client.peer.closed.is_set()
        assert client.channel.is_closed
        assert client.channel.sent.empty()
        with pytest.raises(errors.Gone):
            await client.peer.notify("event", {})


async def test_requests_before_the_end_of_the_input_are_answered_before_the_last_notification() -> None:
    client, order = rpc_peers.FakeClient(), list[str]()

    async def finish() -> None:
        order.extend(["answered"] * client.channel.sent.qsize())
        await made.notify("last", [])

    made = peer.Peer(client.channel, client.methods, DRAINING)
    client.send(request(1, "wait", []), request(2, "wait", []))
    client.disconnect()
    running = asyncio.create_task(made.run(finish))
    await polling.until_async(lambda: len(client.started) == 2)
    client.proceed.set()
    await running
    assert order == ["answered"] * 2
    assert [("method" in await client.receive()) for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize("how", ["output closed", "output closed after input", "drain time exceeded"])
async def test_end_of_the_client_cancels_requests(how: str) -> None:
    limits = frames.FrameLimits(drain_seconds=0.01) if how == "drain time exceeded" else DRAINING
    async with rpc_peers.open_peer(limits) as client:
        client.send(request(1, "wait", []))
        await polling.until_async(lambda: client.started)
        if how != "output closed":
            client.disconnect()
        if limits is DRAINING:
            await rpc_peers.settle()
            assert not client.running.done()
            client.channel.broken.set()
        await client.wait_closed()
        assert (client.ended, client.channel.is_closed) == ([[]], True)


async def test_cancelled_peer_leaves_no_task() -> None:
    async with rpc_peers.open_peer(capacity=1) as client:
        tasks_before = len(asyncio.all_tasks()) - 1
        client.send(request(1, "count", [50]), request(2, "wait", []))
        await polling.until_async(lambda: client.started and client.channel.sent.full())
        client.running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client.running
        assert client.ended == [[]]
        # The first task is the one that runs the tests.
        assert len(asyncio.all_tasks()) == tasks_before
        client.running = asyncio.create_task(asyncio.sleep(0))


async def test_peer_survives_any_bytes_and_a_running_request_is_not_affected() -> None:
    # Most frames are wrong enough to get an error. `make chaos` tries many more.
    assert await rpc_fuzzing.send_lines(random.Random(7), 1_000) > 500
