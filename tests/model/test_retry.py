"""Asking again and asking another: only while nothing was said, and never for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast import errors
from holdfast.model import ScriptedModel, base, retry

ASKED = base.Request(messages=())


def collected(model: base.Model) -> tuple[list[base.Delta], Exception | None]:
    async def collect() -> tuple[list[base.Delta], Exception | None]:
        seen: list[base.Delta] = []
        try:
            async for delta in model.stream(ASKED):
                seen += [delta]
        except errors.ModelError as error:
            return seen, error
        return seen, None

    return asyncio.run(collect())


def patient(
    *script: object, backoff: retry.Backoff | None = None
) -> tuple[retry.RetryingModel, ScriptedModel, list[float]]:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    inner = ScriptedModel(script)  # type: ignore[arg-type]
    return retry.RetryingModel(inner, backoff, sleep=sleep, random_number=lambda: 0.5), inner, waits


def said(deltas: Sequence[base.Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, base.ContentDelta))


def test_a_busy_provider_is_asked_again_with_growing_waits() -> None:
    model, inner, waits = patient(errors.ModelBusy(), errors.ModelUnreachable(), "Here.")
    deltas, error = collected(model)
    assert (said(deltas), error, len(inner.requests)) == ("Here.", None, 3)
    assert waits == [0.5, 1.0]
    assert [delta.attempt for delta in deltas if isinstance(delta, base.RetryDelta)] == [1, 2]


def test_why_it_waits_is_told_once_and_again_when_it_is_another_reason() -> None:
    script = [errors.ModelUnreachable("Gone."), errors.ModelUnreachable("Gone."), errors.ModelBusy("Busy."), "Here."]
    deltas, _ = collected(patient(*script)[0])
    assert [delta.why for delta in deltas if isinstance(delta, base.RetryDelta)] == ["Gone.", "", "Busy."]


def test_what_the_provider_asks_for_is_honoured() -> None:
    model, _, waits = patient(errors.ModelBusy(retry_after=7.5), "Here.")
    assert said(collected(model)[0]) == "Here."
    assert waits == [7.5]


def test_a_wait_beyond_all_patience_fails_at_once() -> None:
    model, inner, waits = patient(errors.ModelBusy(retry_after=3600.0), "Here.")
    assert isinstance(collected(model)[1], errors.ModelBusy)
    assert (len(inner.requests), waits) == (1, [])


def test_it_gives_up() -> None:
    model, inner, waits = patient(*[errors.ModelBusy()] * 10)
    assert isinstance(collected(model)[1], errors.ModelBusy)
    assert (len(inner.requests), len(waits)) == (4, 3)


@pytest.mark.parametrize("error", [errors.KeyRefused(), errors.RequestRefused(), errors.ContextOverflow()])
def test_what_cannot_get_better_is_not_asked_again(error: errors.ModelError) -> None:
    model, inner, _ = patient(error, "Here.")
    assert collected(model)[1] is error
    assert len(inner.requests) == 1


def test_once_something_was_said_it_is_not_said_again() -> None:
    model, inner, _ = patient([base.ContentDelta("Half"), errors.ModelCut()], "Whole.")
    deltas, error = collected(model)
    assert (said(deltas), type(error), len(inner.requests)) == ("Half", errors.ModelCut, 1)


def test_where_one_model_cannot_answer_the_next_is_asked() -> None:
    models = [
        ScriptedModel([errors.KeyRefused("No key.")], name="a/one", window=100),
        ScriptedModel([errors.ModelBusy()], name="b/two", window=50),
        ScriptedModel(["Here."], name="c/three", window=200),
    ]
    chain = retry.FallbackModel(models)
    deltas, error = collected(chain)
    assert (said(deltas), error) == ("Here.", None)
    assert [delta.model for delta in deltas if isinstance(delta, base.FallbackDelta)] == ["b/two", "c/three"]
    assert (chain.name, chain.window) == ("a/one", 50)
    asyncio.run(chain.close())
    assert all(model.closed for model in models)


@pytest.mark.parametrize(
    "first", [[errors.ContextOverflow()], [[base.ContentDelta("Half"), errors.ModelCut()]]], ids=["overflow", "cut"]
)
def test_an_overflow_and_a_cut_are_not_passed_on(first: list[object]) -> None:
    second = ScriptedModel(["Here."])
    _, error = collected(retry.FallbackModel([ScriptedModel(first), second]))  # type: ignore[arg-type]
    assert isinstance(error, errors.ModelError)
    assert second.requests == []


def test_the_last_error_is_the_one_that_is_told() -> None:
    chain = retry.FallbackModel([ScriptedModel([errors.KeyRefused("one")]), ScriptedModel([errors.ModelBusy("two")])])
    assert str(collected(chain)[1]) == "two"
