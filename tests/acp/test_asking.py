"""Asking the editor: whatever it says, or does not, comes to a sentence, and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import acp
import pytest
from acp import schema

from holdfast import errors
from holdfast.acp import client


def told(what: Callable[[], object], seconds: float | None = 30.0) -> errors.ToolFailed:
    """What comes of an answer that is made like this."""

    async def asked() -> object:
        return what()

    with pytest.raises(errors.ToolFailed) as found:
        asyncio.run(client.request(asked(), seconds))
    return found.value


def raised(error: Exception) -> Callable[[], object]:
    def answer() -> object:
        raise error

    return answer


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "'Internal error'"),
        ({"details": "it is private"}, "'Internal error: it is private'"),
        ("it is private", "'Internal error: it is private'"),
        ({"details": 7, "message": "no"}, "'Internal error: no'"),
        ([1], "'Internal error'"),
        ({}, "'Internal error'"),
    ],
)
def test_a_refusal_is_told_in_the_words_of_the_editor(data: object, said: str) -> None:
    error = told(raised(acp.RequestError(-32603, "Internal error", data)))
    assert str(error) == f"The editor refused the request: {said}."
    assert not isinstance(error, client.NotOffered)


def test_words_of_an_editor_are_one_line_of_bounded_length() -> None:
    said = str(told(raised(acp.RequestError(-32603, "x\n\x1b[2J" * 1000))))
    assert said.isprintable()
    assert len(said) < 400


def test_what_it_does_not_know_is_told_apart() -> None:
    error = told(raised(acp.RequestError.method_not_found("terminal/create")))
    assert isinstance(error, client.NotOffered)
    assert str(error)


def test_an_answer_that_is_none_and_an_editor_that_is_gone_are_told() -> None:
    assert "invalid response" in str(told(lambda: schema.CreateTerminalResponse.model_validate({"terminal": 1})))
    assert "has disconnected" in str(told(raised(ConnectionError("Connection closed"))))
    assert "has disconnected" in str(told(raised(BrokenPipeError())))


async def test_one_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    with pytest.raises(errors.ToolFailed, match=r"did not answer within 0\.01 s"):
        await client.request(asyncio.Event().wait(), 0.01)


async def test_who_is_cancelled_is_cancelled() -> None:
    waiting = asyncio.ensure_future(client.request(asyncio.Event().wait(), None))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
