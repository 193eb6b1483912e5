"""Whatever a client sends for parameters, it gets a typed answer, and nobody else is harmed by it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.terminal import methods, wire
from tests.terminal import calling

CALLS = 150
TYPED = {wire.INVALID, wire.REFUSED, wire.NOT_OPEN, wire.NOT_FOUND}
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
# Whatever closes the session, stops for the model, or goes on in others is for other tests.
LEFT_OUT = {"session.close", "prompt.submit", "session.steer"}


def made(rng: random.Random, method: methods.Method, key: str) -> dict[str, Any]:
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
    rng = random.Random(seed)

    async def story(desk: calling.Desk, client: calling.Caller) -> None:
        other = await desk.caller()
        safe = (await other.ask("session.create"))["session_id"]
        await other.say(safe, "Hello")
        key = (await client.ask("session.create"))["session_id"]
        await client.say(key, "Hello")
        for _ in range(CALLS):
            name = rng.choice([each for each in methods.METHODS if each not in LEFT_OUT])
            params = made(rng, methods.METHODS[name], key)
            answer = await client.asking(name, **params)
            assert "result" in answer or answer["error"]["code"] in TYPED, (name, params, answer)
        assert (await other.say(safe, "Still there?"))["payload"]["status"] == "completed"
        assert (await other.ask("session.history", session_id=safe))["last_seq"] == 4
        assert (await client.ask("session.close", session_id=key))["session_id"]

    calling.run(story, ["ok"] * 500)
