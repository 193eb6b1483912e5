"""Retries and fallbacks: only while nothing was said, and never for ever."""

from __future__ import annotations

import pytest

from holdfast import content_parts, errors
from holdfast.model import ScriptedModel, base, retry
from tests.support.provider_calls import collect


def retrying(*script: object) -> tuple[retry.RetryingModel, ScriptedModel, list[float]]:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    inner = ScriptedModel(script)  # type: ignore[arg-type]
    return retry.RetryingModel(inner, None, sleep=sleep, random_number=lambda: 0.5), inner, waits


async def test_temporary_errors_are_retried_with_growing_delays_and_each_reason_once() -> None:
    script = [errors.ModelUnreachable("Gone."), errors.ModelUnreachable("Gone."), errors.ModelBusy("Busy."), "Here."]
    model, _, waits = retrying(*script)
    reply, deltas, error = await collect(model)
    assert (reply.text, error, waits) == ("Here.", None, [0.5, 1.0, 2.0])
    retries = [(delta.attempt, delta.why) for delta in deltas if isinstance(delta, base.RetryDelta)]
    assert retries == [(1, "Gone."), (2, ""), (3, "Busy.")]


@pytest.mark.parametrize(
    ("script", "waits"),
    [
        ([errors.ModelBusy(retry_after=3600.0)], []),
        ([errors.KeyRefused()], []),
        ([errors.ContextOverflow()], []),
        ([[base.ContentDelta("Half"), errors.ModelCut()]], []),
        ([errors.ModelBusy(retry_after=7.5)] * 4, [7.5] * 3),
    ],
    ids=["delay too long", "key", "overflow", "cut", "too many attempts"],
)
async def test_error_is_final(script: list[object], waits: list[float]) -> None:
    model, inner, waited = retrying(*script, "Here.")
    reply, _, error = await collect(model)
    assert error is not None
    assert reply.text in ("", "Half")
    assert (len(inner.requests), waited) == (len(script), waits)


async def test_next_model_is_asked_when_one_fails() -> None:
    texts, thought = [base.ContentDelta("So. "), base.ContentDelta("Here.")], base.ThinkingDelta("Hm.", "signature")
    thoughtful = [texts[0], thought, texts[1], base.FinishDelta("stop")]
    models = [
        ScriptedModel([errors.KeyRefused("No key."), errors.KeyRefused("No key.")], name="a/one", window=100),
        ScriptedModel([errors.ModelBusy(), errors.ModelBusy()], name="b/two", window=50),
        ScriptedModel([thoughtful, errors.ModelBusy("last")], name="c/three", window=200),
    ]
    chain = retry.FallbackModel(models)
    reply, deltas, error = await collect(chain)
    assert (reply.text, reply.model, error) == ("So. Here.", "c/three", None)
    assert reply.parts[1] == content_parts.Reasoning("Hm.", "signature", provider="c")
    assert [delta.model for delta in deltas if isinstance(delta, base.FallbackDelta)] == ["b/two", "c/three"]
    assert (chain.name, chain.window) == ("a/one", 50)
    assert str((await collect(chain))[2]) == "last"
    await chain.close()
    assert all(model.closed for model in models)


@pytest.mark.parametrize("first", [errors.ContextOverflow(), [base.ContentDelta("Half"), errors.ModelCut()]])
async def test_overflow_and_cut_are_not_passed_to_the_next_model(first: object) -> None:
    second = ScriptedModel(["Here."])
    _, _, error = await collect(retry.FallbackModel([ScriptedModel([first]), second]))  # type: ignore[list-item]
    assert isinstance(error, errors.ModelError)
    assert second.requests == []
