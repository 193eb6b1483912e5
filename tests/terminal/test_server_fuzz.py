"""Whatever clients ask for, in whichever order and however many at once, they get typed answers, every prompt that was
taken has one end, and nobody is harmed.

`make chaos` tries many more, with a seed it prints.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from holdfast.rpc import frames
from holdfast.rpc_server import wire_types
from tests.support import rpc_client
from tests.support.compaction import FakeSummarizer
from tests.terminal.test_server import PICTURE

CALLS = 150
AT_ONCE = 25
TYPED = {frames.INVALID_PARAMS, wire_types.REFUSED, wire_types.NOT_OPEN, wire_types.NOT_FOUND}
ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**40,
    1.5,
    1e308,
    "",
    " ",
    "last",
    "\0",
    "\u200b\u202e",
    "\x1b[31m",
    "%s%n",
    "' OR 1=1 --",
    "../../etc",
    "x" * 5000,
    "/",
    "/undo 99999999999999999999",
    "/new",
    "/branch \n\t",
    "/compact --",
    "/title \0",
    "/resume \u202e",
    "/queue drop -1",
    [],
    [[]],
    ["x"],
    {},
    {"a": {"b": 1}},
    {"columns": 40, "tool_progress": "new"},
    {"images": [{"data": "AAAA"}]},
]
# Whatever closes the session, stops for the model, or goes on in others is below.
LEFT_OUT = {"session.close", "prompt.submit", "session.steer"}


def made(rng: random.Random, method: wire_types.Method, key: str) -> dict[str, Any]:
    """Parameters of which some are right, some odd, some left out and some nobody knows."""
    given: dict[str, Any] = {}
    for name in method.params.__struct_fields__:
        if name == "session_id" and rng.random() < 0.8:
            given[name] = key
        elif rng.random() < 0.7:
            given[name] = rng.choice(ODD)
    if rng.random() < 0.1:
        given[f"odd{rng.random()}"] = rng.choice(ODD)
    return given


@pytest.mark.parametrize("seed", range(3))
def test_odd_parameters_get_typed_answers_and_harm_nobody(seed: int) -> None:
    at_a_server(random.Random(seed), CALLS)


def at_a_server(rng: random.Random, calls: int) -> None:
    async def story(desk: rpc_client.Desk, client: rpc_client.Caller) -> None:
        other = await desk.caller()
        safe = (await other.ask("session.create"))["session_id"]
        await other.say(safe, "Hello")
        key = (await client.ask("session.create"))["session_id"]
        await client.say(key, "Hello")
        for _ in range(calls):
            name = rng.choice([each for each in wire_types.METHODS if each not in LEFT_OUT])
            params = made(rng, wire_types.METHODS[name], key)
            answer = await client.asking(name, **params)
            assert "result" in answer or answer["error"]["code"] in TYPED, (name, params, answer)
        assert (await other.say(safe, "Still there?"))["payload"]["status"] == "completed"
        assert (await other.ask("session.history", session_id=safe))["last_seq"] == 4
        assert (await client.ask("session.close", session_id=key))["session_id"]

    rpc_client.run(story, ["ok"] * 500)


# --- many at once --------------------------------------------------------------------------------------

LINES = ["/retry", "/stop", "/new", "/new T", "/queue", "/branch", "/undo", "/redo", "/compact", "/resume last"]
LINES += ["/queue drop 1", "/queue drop all", "/steer x", "/title", "/title T", "/approve", "/status"]
GIVEN: dict[str, dict[str, list[Any]]] = {
    "session.create": {"title": [None, "A", ""]},
    "session.resume": {},
    "session.info": {},
    "session.history": {},
    "session.options": {"options": [{"columns": 30}, {"images": [PICTURE]}]},
    "session.title": {"title": [None, "A", "B"]},
    "session.undo": {},
    "session.compress": {},
    "session.branch": {},
    "session.interrupt": {},
    "session.steer": {"text": ["steer"]},
    "session.close": {},
    "prompt.submit": {"text": ["Hello", "x" * 300], "images": [[], [], [PICTURE]]},
    "command.exec": {"line": LINES},
}
WEIGHTS = [3 if name == "prompt.submit" else 1 for name in GIVEN]


class Crowd:
    """Clients that ask all at once, of each other's sessions too, and now and then do not want the answer."""

    def __init__(self, rng: random.Random, clients: list[rpc_client.Caller]) -> None:
        self._rng, self._clients = rng, clients
        self._known: list[tuple[rpc_client.Caller, str]] = []
        self.taken: list[tuple[rpc_client.Caller, str]] = []
        """The prompts that were, and whose they are."""

    async def ask(self, calls: int) -> None:
        asking = set[asyncio.Task[None]]()
        for _ in range(calls):
            asking.add(asyncio.create_task(self._ask()))
            await asyncio.sleep(self._rng.choice([0, 0, 0, 0.001]))
            if len(asking) >= AT_ONCE:
                done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
        await asyncio.gather(*asking)

    async def _ask(self) -> None:
        rng = self._rng
        (name,) = rng.choices([*GIVEN], WEIGHTS)
        client, key = rng.choice(self._known[-6:] or [(rng.choice(self._clients), "none")])
        if rng.random() < 0.1:
            client = rng.choice(self._clients)
        given = {each: rng.choice(values) for each, values in GIVEN[name].items()}
        if name != "session.create":
            given["session_id"] = key
        asked = client.asking(name, **given)
        if rng.random() < 0.1:
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
            if not asked.done():
                client.cancel(asked)
        answer = await asked
        if "error" in answer:
            assert answer["error"]["code"] in TYPED | {frames.CANCELLED}, (name, given, answer)
        else:
            self._note(client, answer["result"])

    def _note(self, client: rpc_client.Caller, result: dict[str, Any]) -> None:
        opened = result if "conversation_id" in result else result.get("moved")
        self._known += [(client, opened["session_id"])] if opened else []
        prompt = result if "queued" in result and "uid" in result else result.get("prompt")
        self.taken += [(client, prompt["uid"])] if prompt else []


@pytest.mark.parametrize("seed", range(2))
def test_of_many_at_once_every_prompt_that_was_taken_has_one_end(seed: int) -> None:
    all_at_once(random.Random(seed), CALLS)


def all_at_once(rng: random.Random, calls: int) -> None:
    async def story(desk: rpc_client.Desk, client: rpc_client.Caller) -> None:
        clients = [client, await desk.caller(), await desk.caller()]
        crowd = Crowd(rng, clients)
        await crowd.ask(calls)
        door = desk.home.door
        while busy := door.busy():
            await door.wait_idle(busy[0])
        await desk.server.close()
        assert [*desk.server._sessions] == []
        for each in clients:
            ends = Counter(event["payload"]["uid"] for event in each.told("message.complete"))
            taken = [uid for whose, uid in crowd.taken if whose is each]
            assert {uid: ends[uid] for uid in taken} == dict.fromkeys(taken, 1)
        assert (await desk.db.admin.fsck()).ok
        assert not door._states
        assert not door._titles

    rpc_client.run(story, ["ok"] * 10 * calls, summarizer=FakeSummarizer())
