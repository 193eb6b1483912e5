"""Traces: what is done is in them, what is said is not; without the library there are none, and nothing is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import status

from holdfast import AsyncSessionDB, errors
from holdfast.app import telemetry
from holdfast.gateway import spans
from holdfast.model import ScriptedModel, base
from tests.support import gateways

REQUEST = base.Request(messages=(), max_output=100)


class Seen(trace.NonRecordingSpan):
    """A span that keeps what is said of it."""

    def __init__(self, name: str, kind: trace.SpanKind, attributes: dict[str, Any]) -> None:
        super().__init__(trace.INVALID_SPAN_CONTEXT)
        self.name, self.kind, self.attributes = name, kind, attributes
        self.ended, self.wrong = False, False

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def set_status(self, status: status.Status | trace.StatusCode, description: str | None = None) -> None:
        self.wrong = status is trace.StatusCode.ERROR

    def record_exception(self, exception: BaseException, *_: Any, **__: Any) -> None:
        self.attributes["exception"] = str(exception)

    def is_recording(self) -> bool:
        return True

    def end(self, end_time: int | None = None) -> None:
        self.ended = True


class Tracers(trace.TracerProvider, trace.Tracer):
    """Keeps every span."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def get_tracer(self, *_: Any, **__: Any) -> trace.Tracer:
        return self

    def start_span(self, name: str, *_: Any, **given: Any) -> Seen:
        self.seen.append(Seen(name, given.get("kind", trace.SpanKind.INTERNAL), dict(given.get("attributes") or {})))
        return self.seen[-1]

    def start_as_current_span(self, name: str, *_: Any, **given: Any) -> Any:
        told = {key: given.get(key, True) for key in ("record_exception", "set_status_on_exception")}
        return trace.use_span(self.start_span(name, **given), end_on_exit=True, **told)


class Refusing:
    """A model that says something of what it was asked when it fails."""

    name, window = "lab/small", 1000

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        yield base.ContentDelta("Well")
        raise errors.ModelCut("It broke off at: secret words")

    async def close(self) -> None:
        """Nothing is open."""


async def test_arrivals_turns_and_sendings_are_traced_without_what_was_said(db: AsyncSessionDB) -> None:
    tracers = Tracers()

    with telemetry.install(tracers) as wrap:
        async with gateways.open_gateway(db, wrap(ScriptedModel(["secret words"]))) as (running, chat):
            await chat.say("secret words", sender="ann", name="Ann")
            await chat.replies(1)
            await gateways.wait_idle(running, db)
    assert sorted(each.name for each in tracers.seen if each.name.startswith("holdfast.")) == [
        "holdfast.arrival",
        "holdfast.send",
        "holdfast.turn",
    ]
    (turn,) = [each for each in tracers.seen if each.name == "holdfast.turn"]
    assert (turn.attributes["holdfast.platform"], turn.attributes["holdfast.attempts"]) == ("loopback", 1)
    assert turn.attributes["holdfast.arrival"] == tracers.seen[0].attributes["holdfast.arrival"]
    (asked,) = [each for each in tracers.seen if each.name.startswith("chat ")]
    assert asked.attributes["gen_ai.conversation.id"]
    assert all(each.ended and not each.wrong for each in tracers.seen)
    assert "secret" not in str([each.attributes for each in tracers.seen])
    assert spans.tracer is None


async def test_a_call_of_a_model_is_named_as_the_conventions_have_it() -> None:
    tracers = Tracers()
    with telemetry.install(tracers) as wrap:
        model = wrap(ScriptedModel(["Hello."], name="lab/small"))
        assert [delta async for delta in model.stream(REQUEST)]
    (seen,) = tracers.seen
    assert (seen.name, seen.kind) == ("chat small", trace.SpanKind.CLIENT)
    said = {key: seen.attributes[key] for key in sorted(seen.attributes) if "usage" not in key}
    assert said == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "lab",
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.model": "small",
        "gen_ai.response.finish_reasons": ["stop"],
    }
    assert {"gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"} <= set(seen.attributes)


async def test_of_what_went_wrong_only_the_kind_is_told() -> None:
    tracers = Tracers()
    with telemetry.install(tracers) as wrap, pytest.raises(errors.ModelCut):
        async for _ in wrap(Refusing()).stream(REQUEST):
            pass
    (seen,) = tracers.seen
    assert (seen.wrong, seen.ended, seen.attributes["error.type"]) == (True, True, "ModelCut")
    assert "secret" not in str(seen.attributes)


def test_nor_is_more_told_of_work_that_went_wrong() -> None:
    tracers = Tracers()
    with telemetry.install(tracers), pytest.raises(ValueError), spans.span("holdfast.turn", platform="loopback"):  # noqa: PT011
        raise ValueError("secret words")
    (seen,) = tracers.seen
    assert seen.attributes == {"holdfast.platform": "loopback", "error.type": "ValueError"}
    assert (seen.wrong, seen.ended) == (True, True)


def test_without_the_library_nothing_is_traced_and_nothing_is_missing() -> None:
    code = """if True:
        import sys
        sys.modules["opentelemetry"] = None
        from holdfast.app import telemetry
        from holdfast.gateway import spans
        model = object()
        with telemetry.install() as wrap:
            assert wrap(model) is model
            assert spans.tracer is None
        assert not [name for name in sys.modules if name.startswith("opentelemetry.")]
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
