"""Traces: spans of messages, turns and model calls, without content; none without the library."""

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
    """A span that keeps its attributes."""

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
        options = {key: given.get(key, True) for key in ("record_exception", "set_status_on_exception")}
        return trace.use_span(self.start_span(name, **given), end_on_exit=True, **options)


async def test_inbound_turns_and_sends_are_traced_without_content(db: AsyncSessionDB) -> None:
    tracers = Tracers()
    with telemetry.install(tracers) as wrap:
        model = wrap(ScriptedModel(["secret words"], name="lab/small"))
        async with gateways.open_gateway(db, model) as (running, chat):
            await chat.say("secret words", sender="ann", name="Ann")
            await chat.replies(1)
            await gateways.wait_idle(running, db)
    names = sorted(each.name for each in tracers.seen if each.name.startswith("holdfast."))
    assert names == ["holdfast.arrival", "holdfast.send", "holdfast.turn"]
    (turn,) = [each for each in tracers.seen if each.name == "holdfast.turn"]
    assert (turn.attributes["holdfast.platform"], turn.attributes["holdfast.attempts"]) == ("loopback", 1)
    assert turn.attributes["holdfast.arrival"] == tracers.seen[0].attributes["holdfast.arrival"]
    (asked,) = [each for each in tracers.seen if each.name.startswith("chat ")]
    assert (asked.name, asked.kind) == ("chat small", trace.SpanKind.CLIENT)
    said = {key.removeprefix("gen_ai."): value for key, value in asked.attributes.items()}
    assert said["conversation.id"]
    assert {"usage.input_tokens", "usage.output_tokens"} <= set(said)
    names = ("operation.name", "provider.name", "request.model", "response.finish_reasons")
    assert [said[name] for name in names] == ["chat", "lab", "small", ["stop"]]
    assert all(each.ended and not each.wrong for each in tracers.seen)
    assert "secret" not in str([each.attributes for each in tracers.seen])
    assert spans.tracer is None


class FailingModel(ScriptedModel):
    """A model that quotes the request when it fails."""

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        yield base.ContentDelta("Well")
        raise errors.ModelCut("It broke off at: secret words")


async def test_span_of_a_failure_has_its_type_only() -> None:
    tracers = Tracers()
    with telemetry.install(tracers) as wrap:
        with pytest.raises(errors.ModelCut):
            _ = [delta async for delta in wrap(FailingModel([])).stream(REQUEST)]
        with pytest.raises(ValueError, match="secret"), spans.span("holdfast.turn", platform="loopback"):
            raise ValueError("secret words")
    assert [each.attributes["error.type"] for each in tracers.seen] == ["ModelCut", "ValueError"]
    assert all(each.wrong and each.ended for each in tracers.seen)
    assert "secret" not in str([each.attributes for each in tracers.seen])


def test_without_opentelemetry_the_model_is_not_wrapped() -> None:
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
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
