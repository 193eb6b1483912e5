"""A peer: every request is answered once, notifications never, and nobody can make it work or remember without end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from holdfast import errors
from holdfast.rpc import frames, peer
from tests.support import polling, rpc_peers
from tests.support.rpc_peers import notification, request

PATIENT = frames.FrameLimits(max_running=2, busy_seconds=1_000.0)
AT_ONCE = frames.FrameLimits(max_running=2, busy_seconds=0.0)


async def test_a_request_is_answered_with_its_id() -> None:
    async with rpc_peers.opened() as other:
        for each in (1, -1, 0, 0.5, "x", "", None, 10**60, 2**53 + 1):
            assert await other.ask(each, "echo", [1]) == {"jsonrpc": "2.0", "id": each, "result": [1]}


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("nothing", {"code": frames.METHOD_NOT_FOUND, "message": "Unknown method: 'nothing'."}),
        ("refuse", {"code": -32050, "message": "Not today.", "data": {"a": 1}}),
        (
            "miss",
            {"code": frames.FAILED, "message": "There is no session 'x'.", "data": {"type": "NoSuchSession"}},
        ),
        ("break", {"code": frames.INTERNAL_ERROR, "message": "Internal error."}),
        ("no_json", {"code": frames.INTERNAL_ERROR, "message": "Internal error."}),
    ],
)
async def test_what_cannot_be_done_is_told_by_a_code(method: str, error: dict[str, Any]) -> None:
    async with rpc_peers.opened() as other:
        assert await other.ask(1, method, {"a": 1}) == {"jsonrpc": "2.0", "id": 1, "error": error}
        assert (await other.ask(2, "echo", []))["result"] == []


async def test_a_refusal_whose_data_is_no_json_is_answered_all_the_same() -> None:
    async def refuse(_: peer.Peer, params: frames.Params) -> object:
        raise errors.RpcRefused(-1, "No.", object())

    channel = rpc_peers.Memory()
    channel.came.put_nowait(json.dumps(request(1, "x")).encode())
    running = asyncio.create_task(peer.Peer(channel, {"x": refuse}).run())
    assert json.loads(await channel.sent.get())["error"]["code"] == frames.INTERNAL_ERROR
    channel.came.put_nowait(None)
    await running


async def test_notifications_and_answers_are_never_answered() -> None:
    async with rpc_peers.opened() as other:
        for method in ("echo", "nothing", "refuse", "break", "no_json", "$/cancelRequest"):
            other.say(notification(method, {"id": 9}))
        other.say({"jsonrpc": "2.0", "id": 1, "result": 1}, notification("wait", ["heard"]))
        assert (await other.ask(2, "echo", []))["id"] == 2
        assert other.begun == [["heard"]]


async def test_what_takes_long_keeps_nobody_waiting() -> None:
    async with rpc_peers.opened() as other:
        other.say(request(1, "wait", ["a"]))
        assert (await other.ask(2, "echo", []))["id"] == 2
        other.go.set()
        assert (await other.hear())["id"] == 1


async def test_requests_begin_in_the_order_they_came() -> None:
    async with rpc_peers.opened() as other:
        other.say(*(request(number, "wait", [number]) for number in range(20)))
        await polling.until_async(lambda: len(other.begun) == 20)
        assert other.begun == [[number] for number in range(20)]
        other.go.set()
        assert {(await other.hear())["id"] for _ in range(20)} == set(range(20))


# --- batches -------------------------------------------------------------------------------------------


async def test_a_batch_is_answered_in_one_frame_without_its_notifications() -> None:
    async with rpc_peers.opened() as other:
        batch = [request(1, "echo", []), notification("echo"), 7, request(2, "nothing"), request("x", "refuse", [])]
        other.say(batch)
        found = await other.hear()
        assert [(each["id"], each.get("error", {}).get("code")) for each in found] == [
            (1, None),
            (None, frames.INVALID_REQUEST),
            (2, frames.METHOD_NOT_FOUND),
            ("x", -32050),
        ]


async def test_a_batch_of_notifications_is_not_answered_and_an_empty_one_is_refused() -> None:
    async with rpc_peers.opened() as other:
        other.say([notification("echo"), notification("nothing")], [])
        found = await other.hear()
        assert (found["id"], found["error"]["code"]) == (None, frames.INVALID_REQUEST)


async def test_a_batch_that_waits_keeps_nobody_waiting_and_parts_of_it_can_be_cancelled() -> None:
    async with rpc_peers.opened() as other:
        other.say([request(1, "wait", []), request(2, "wait", []), notification(peer.CANCEL, {"id": 2})])
        assert (await other.ask(3, "echo", []))["id"] == 3
        other.say(notification(peer.CANCEL, {"id": 1}))
        found = await other.hear()
        assert [(each["id"], each["error"]["code"]) for each in found] == [
            (1, frames.CANCELLED),
            (2, frames.CANCELLED),
        ]


async def test_a_batch_of_more_messages_than_run_at_once_is_refused() -> None:
    async with rpc_peers.opened(PATIENT) as other:
        other.say([request(number, "echo", []) for number in range(PATIENT.max_running + 1)])
        assert (await other.hear())["error"]["code"] == frames.INVALID_REQUEST
        other.say([request(number, "echo", []) for number in range(PATIENT.max_running)])
        assert [each["id"] for each in await other.hear()] == list(range(PATIENT.max_running))


async def test_batches_that_nobody_reads_the_answers_of_are_not_taken_without_end() -> None:
    async with rpc_peers.opened(PATIENT, room=1) as other:
        for number in range(100):
            other.say([request(number, "echo", [])])
        await rpc_peers.settled(500)
        assert other.channel.received < 10
        for number in range(100):
            assert [each["id"] for each in await other.hear()] == [number]


async def test_request_of_a_batch_frees_its_slot_when_it_ends() -> None:
    async with rpc_peers.opened(frames.FrameLimits(max_running=2, busy_seconds=0.5)) as other:
        other.say([request(1, "wait", []), request(2, "echo", [])])
        for number in range(3, 6):
            assert (await other.ask(number, "echo", []))["result"] == []
        other.go.set()
        assert [each["id"] for each in await other.hear()] == [1, 2]


async def test_batch_starts_requests_as_earlier_ones_of_it_end() -> None:
    async with rpc_peers.opened(frames.FrameLimits(max_running=2, busy_seconds=0.5)) as other:
        other.say(request(1, "wait", []), [request(2, "echo", []), request(3, "echo", [])])
        assert [each.get("result") for each in await other.hear()] == [[], []]
        other.go.set()
        assert (await other.hear())["id"] == 1


async def test_rest_of_a_batch_with_too_large_responses_is_refused_and_not_run() -> None:
    async with rpc_peers.opened(frames.FrameLimits(max_bytes=8_000, max_running=4, busy_seconds=0.1)) as other:
        other.say(request(0, "wait", []), request(1, "wait", []))
        await polling.until_async(lambda: len(other.begun) == 2)
        other.say([request(number, "give", [5_000]) for number in range(10, 13)])
        found = await other.hear()
        # Both of the slots that were left ran before their responses were too large.
        assert [each.get("error", {}).get("code") for each in found] == [None, None, frames.BUSY]
        assert (await other.ask(2, "give", [5_000]))["id"] == 2


async def test_unread_responses_of_batches_are_limited_by_their_size() -> None:
    async with rpc_peers.opened(
        frames.FrameLimits(max_bytes=8_000, max_running=8, busy_seconds=1_000.0), room=1
    ) as other:
        for number in range(0, 100, 2):
            other.say([request(number, "give", [3_000]), request(number + 1, "give", [3_000])])
        await rpc_peers.settled(500)
        # One batch was sent; the responses of those that ran meanwhile are too large for another.
        assert len(other.begun) <= 2 + 8
        for number in range(0, 100, 2):
            assert [each["id"] for each in await other.hear()] == [number, number + 1]


# --- cancellation --------------------------------------------------------------------------------------


async def test_a_cancelled_request_is_answered_once_and_nothing_else_is_harmed() -> None:
    async with rpc_peers.opened() as other:
        other.say(request(1, "wait", ["a"]), request(2, "wait", ["b"]))
        await polling.until_async(lambda: len(other.begun) == 2)
        other.say(notification(peer.CANCEL, {"id": 1}), notification(peer.CANCEL, {"id": 1}))
        found = await other.hear()
        assert (found["id"], found["error"]["code"]) == (1, frames.CANCELLED)
        assert other.ended == [["a"]]
        other.go.set()
        assert (await other.hear())["id"] == 2
        assert (await other.ask(1, "echo", []))["result"] == []


@pytest.mark.parametrize("params", [None, [], [1], {}, {"id": None}, {"id": [1]}, {"id": {}}, {"id": 7}, {"id": "1"}])
async def test_a_cancellation_of_nothing_does_nothing(params: Any) -> None:
    async with rpc_peers.opened() as other:
        other.say(request(1, "wait", []), request(None, "wait", []), notification(peer.CANCEL, params))
        assert (await other.ask(2, "echo", []))["id"] == 2
        assert other.ended == []
        other.go.set()
        assert {(await other.hear())["id"] for _ in range(2)} == {1, None}


async def test_a_request_that_is_cancelled_before_it_begins_is_answered() -> None:
    async with rpc_peers.opened() as other:
        other.say(request(1, "wait", []), notification(peer.CANCEL, {"id": 1}))
        assert (await other.hear())["error"]["code"] == frames.CANCELLED


# --- ids -----------------------------------------------------------------------------------------------


async def test_an_id_that_is_in_use_is_refused_without_answering_the_other() -> None:
    async with rpc_peers.opened() as other:
        other.say(request(1, "wait", []), request(1, "echo", []), request(1.0, "echo", []))
        for _ in range(2):
            found = await other.hear()
            assert (found["id"], found["error"]["code"], found["error"]["data"]) == (
                None,
                frames.INVALID_REQUEST,
                {"id": 1},
            )
        assert (await other.ask("1", "echo", []))["result"] == []
        other.go.set()
        assert (await other.hear())["result"] == []
        assert (await other.ask(1, "echo", [2]))["result"] == [2]


async def test_requests_without_a_name_are_each_answered() -> None:
    async with rpc_peers.opened() as other:
        other.say(request(None, "wait", [1]), request(None, "wait", [2]))
        await polling.until_async(lambda: len(other.begun) == 2)
        other.go.set()
        assert [(await other.hear())["result"] for _ in range(2)] == [[1], [2]]


# --- anything ------------------------------------------------------------------------------------------

names = strategies.none() | strategies.integers(0, 4) | strategies.sampled_from(["0", "a"])
requests = strategies.builds(
    request, names, strategies.sampled_from(["echo", "wait", "refuse", "miss", "no_json", "nothing"])
)
notifications = strategies.builds(notification, strategies.sampled_from(["echo", "wait", "miss", "nothing"]))
cancellations = strategies.builds(lambda name: notification(peer.CANCEL, {"id": name}), names)
singles = strategies.one_of(requests, notifications, cancellations, strategies.just({"jsonrpc": "2.0", "id": "bad"}))


@hypothesis.given(strategies.lists(singles | strategies.lists(singles, min_size=1, max_size=4), max_size=12))
def test_for_any_frames_every_request_is_answered_once_and_nothing_else_is(said: list[Any]) -> None:
    async def story(other: rpc_peers.Other) -> None:
        other.say(*said, request("last", "echo", []))
        await polling.until_async(other.channel.came.empty)
        await rpc_peers.settled()
        other.go.set()
        answers = list[Any]()
        wanted = [
            [each for each in (frame if isinstance(frame, list) else [frame]) if "id" in each]
            for frame in [*said, request("last", "echo", [])]
        ]
        for _ in range(sum(map(bool, wanted))):
            heard = await other.hear()
            answers += heard if isinstance(heard, list) else [heard]
        await rpc_peers.settled()
        assert other.channel.sent.empty()
        # Where an id was in use, the answer names it beside a null one.
        told = [each["id"] if not _in_use(each) else each["error"]["data"]["id"] for each in answers]
        assert sorted(map(repr, told)) == sorted(repr(each["id"]) for frame in wanted for each in frame)

    rpc_peers.run(story, frames.FrameLimits(max_running=100))


def _in_use(answer: Any) -> bool:
    return (
        answer["id"] is None
        and isinstance(answer.get("error", {}).get("data"), dict)
        and (answer["error"]["code"] == frames.INVALID_REQUEST)
    )


# --- back-pressure -------------------------------------------------------------------------------------


async def test_while_as_many_are_worked_on_as_may_be_nothing_more_is_read() -> None:
    async with rpc_peers.opened(PATIENT) as other:
        other.say(*(request(number, "wait", [number]) for number in range(10)))
        await rpc_peers.settled()
        assert len(other.begun) == 2
        assert other.channel.received == 3
        other.go.set()
        assert {(await other.hear())["id"] for _ in range(10)} == set(range(10))


async def test_where_nothing_moves_requests_are_refused_and_a_cancellation_gets_through() -> None:
    async with rpc_peers.opened(AT_ONCE) as other:
        other.say(request(1, "wait", []), request(2, "wait", []), request(3, "echo", []), [request(4, "echo", [])])
        found = await other.hear()
        assert (found["id"], found["error"]["code"]) == (3, frames.BUSY)
        (found,) = await other.hear()
        assert (found["id"], found["error"]["code"]) == (4, frames.BUSY)
        other.say(notification("wait"), notification(peer.CANCEL, {"id": 1}))
        assert (await other.hear())["error"]["code"] == frames.CANCELLED
        assert (await other.ask(5, "echo", []))["result"] == []


async def test_who_does_not_read_is_not_read_from() -> None:
    async with rpc_peers.opened(PATIENT, room=1) as other:
        other.say(*(request(number, "echo", ["x" * 1000]) for number in range(1_000)))
        await rpc_peers.settled(500)
        assert other.channel.received < 10
        assert sorted([(await other.hear())["id"] for _ in range(1_000)]) == list(range(1_000))


async def test_who_does_not_read_errors_is_not_read_from_either() -> None:
    async with rpc_peers.opened(AT_ONCE, room=1) as other:
        other.say(*[b"nonsense", b"[]", b'{"jsonrpc":"2.0","id":1,"method":"none"}'] * 300)
        await rpc_peers.settled(500)
        assert other.channel.received < 10
        codes = [(await other.hear())["error"]["code"] for _ in range(900)]
        assert codes == [frames.PARSE_ERROR, frames.INVALID_REQUEST, frames.METHOD_NOT_FOUND] * 300


async def test_what_is_said_unasked_waits_for_who_reads_and_keeps_its_order() -> None:
    async with rpc_peers.opened(room=1) as other:
        other.say(request(1, "count", [200]))
        await rpc_peers.settled()
        assert other.channel.sent.qsize() == 1
        heard = [await other.hear() for _ in range(201)]
        assert [each["params"] for each in heard[:-1]] == [[number] for number in range(200)]
        assert heard[-1]["result"] == "done"


# --- the end -------------------------------------------------------------------------------------------


async def test_when_the_other_side_is_gone_what_runs_is_cancelled_and_nothing_can_be_said() -> None:
    async with rpc_peers.opened() as other:
        other.say(request(1, "wait", []), notification("wait"), [request(2, "wait", [])])
        await polling.until_async(lambda: len(other.begun) == 3)
        assert not other.peer.closed.is_set()
        other.leave()
        await rpc_peers.gone(other)
        assert len(other.ended) == 3
        assert other.peer.closed.is_set()
        assert other.channel.is_closed
        assert other.channel.sent.empty()
        with pytest.raises(errors.Gone):
            await other.peer.notify("event", {})


async def test_who_only_stops_asking_is_still_answered_where_there_is_time() -> None:
    async with rpc_peers.opened(frames.FrameLimits(drain_seconds=1_000.0)) as other:
        other.say(request(1, "wait", []))
        other.leave()
        await polling.until_async(lambda: other.begun)
        other.go.set()
        assert (await other.hear())["id"] == 1


async def test_who_only_stops_asking_is_told_what_is_left_once_all_is_answered() -> None:
    other, order = rpc_peers.Other(rpc_peers.Memory()), list[str]()

    async def finish() -> None:
        order.extend(["answered"] * other.channel.sent.qsize())
        await made.notify("last", [])

    made = peer.Peer(other.channel, other.methods, frames.FrameLimits(drain_seconds=1_000.0))
    other.say(request(1, "wait", []), request(2, "wait", []))
    other.leave()
    running = asyncio.create_task(made.run(finish))
    await polling.until_async(lambda: len(other.begun) == 2)
    other.go.set()
    await running
    assert order == ["answered"] * 2
    assert [("method" in await other.hear()) for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize("asks", [True, False], ids=["still asking", "asking nothing more"])
async def test_when_nobody_reads_any_more_it_ends_and_what_runs_is_cancelled(asks: bool) -> None:
    async with rpc_peers.opened(frames.FrameLimits(drain_seconds=1_000.0)) as other:
        other.say(request(1, "wait", []))
        await polling.until_async(lambda: other.begun)
        if not asks:
            other.leave()
        await rpc_peers.settled()
        assert not other.running.done()
        other.channel.broken.set()
        await rpc_peers.gone(other)
        assert (other.ended, other.channel.is_closed) == ([[]], True)


async def test_what_takes_longer_than_there_is_time_at_the_end_is_cancelled() -> None:
    async with rpc_peers.opened(frames.FrameLimits(drain_seconds=0.01)) as other:
        other.say(request(1, "wait", []))
        other.leave()
        await rpc_peers.gone(other)
        assert other.ended == [[]]


@pytest.mark.parametrize("where", ["receive", "unread"])
async def test_a_fault_of_the_program_ends_the_peer_and_is_not_kept_quiet(where: str) -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    channel = rpc_peers.Memory()
    setattr(channel, where, broken)
    with pytest.raises(ZeroDivisionError):
        await peer.Peer(channel, {}).run()
    assert channel.is_closed


async def test_a_channel_that_breaks_while_it_is_written_to_ends_the_peer() -> None:
    async with rpc_peers.opened() as other:
        other.channel.is_closed = True
        other.say(request(1, "echo", []), b"nonsense")
        await rpc_peers.gone(other)
        assert other.peer.closed.is_set()


async def test_a_peer_that_is_stopped_leaves_nothing_running() -> None:
    async with rpc_peers.opened(room=1) as other:
        tasks_before = len(asyncio.all_tasks()) - 1
        other.say(request(1, "count", [50]), request(2, "wait", []))
        await polling.until_async(lambda: other.begun and other.channel.sent.full())
        other.running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await other.running
        assert other.ended == [[]]
        # The first task is the one that runs the tests.
        assert len(asyncio.all_tasks()) == tasks_before
        other.running = asyncio.create_task(asyncio.sleep(0))
