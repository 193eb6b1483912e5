"""Traces for OpenTelemetry, where its API is installed (`pip install 'holdfast[otel]'`); otherwise nothing at all.

Only the API is used: where traces go is for whoever starts the program to say, as with `opentelemetry-instrument`.
Calls of models are named as OpenTelemetry's conventions for generative AI have it. What is said is never in a trace.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from holdfast import types
from holdfast.agent import current_session
from holdfast.gateway import spans
from holdfast.model import base

if TYPE_CHECKING:
    from opentelemetry import metrics, trace

SCOPE = "holdfast"
Wrap = Callable[[base.Model], base.Model]
_FINISHES = {"stop": "stop", "calls": "tool_calls", "length": "length", "refused": "content_filter", "cut": "error"}


@contextmanager
def traced(tracers: trace.TracerProvider | None = None, meters: metrics.MeterProvider | None = None) -> Iterator[Wrap]:
    """Trace what the gateway does to the end of the block; models are traced that were wrapped.

    Where nothing is given, it goes where the process was told to send it.
    """
    try:
        from opentelemetry import metrics, trace  # noqa: PLC0415 -- the rest runs without it
    except ImportError:
        yield lambda model: model
        return
    instruments = Instruments(
        trace.get_tracer(SCOPE, tracer_provider=tracers),
        metrics.get_meter(SCOPE, meter_provider=meters),
        trace.SpanKind.CLIENT,
        trace.StatusCode.ERROR,
    )
    before, spans.around = spans.around, instruments.around
    try:
        yield lambda model: Traced(model, instruments)
    finally:
        spans.around = before


class Instruments:
    """What is traced and measured with."""

    def __init__(
        self, tracer: trace.Tracer, meter: metrics.Meter, client: trace.SpanKind, error: trace.StatusCode
    ) -> None:
        self.tracer, self.client, self._error = tracer, client, error
        self.seconds = meter.create_histogram("gen_ai.client.operation.duration", "s")
        self.tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}")

    @contextmanager
    def around(self, name: spans.Name, attributes: Mapping[str, spans.Value]) -> Iterator[spans.Put]:
        with self.tracer.start_as_current_span(
            name, attributes=dict(attributes), record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span.set_attribute
            except BaseException as error:
                self.failed(span, error)
                raise

    def failed(self, span: trace.Span, error: BaseException) -> None:
        """What an error says may be what somebody wrote; its kind is enough."""
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(self._error)


class Traced:
    """A model whose calls are traced."""

    def __init__(self, model: base.Model, instruments: Instruments) -> None:
        self.inner, self._instruments = model, instruments

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def window(self) -> int:
        return self.inner.window

    async def close(self) -> None:
        await self.inner.close()

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        kind, began, used = _kind(self.name), monotonic(), types.Usage()
        # Not the current one: who reads a stream may go on elsewhere between two pieces of it.
        span = self._instruments.tracer.start_span(
            f"chat {kind['gen_ai.request.model']}", kind=self._instruments.client, attributes=_asked(kind, request)
        )
        try:
            async with aclosing(self.inner.stream(request)) as deltas:
                async for delta in deltas:
                    used = delta.usage if isinstance(delta, base.UsageDelta) else used
                    _saw(span, delta)
                    yield delta
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                self._instruments.failed(span, error)
            raise
        finally:
            self._instruments.seconds.record(monotonic() - began, kind)
            for way, count in (("input", used.input), ("output", used.output)):
                span.set_attribute(f"gen_ai.usage.{way}_tokens", count)
                self._instruments.tokens.record(count, {**kind, "gen_ai.token.type": way})
            span.end()


def _saw(span: trace.Span, delta: base.Delta) -> None:
    match delta:
        case base.FinishDelta(reason):
            span.set_attribute("gen_ai.response.finish_reasons", [_FINISHES[reason]])
        case base.FallbackDelta(model):
            span.set_attribute("gen_ai.response.model", _kind(model)["gen_ai.request.model"])
        case _:
            pass


def _kind(name: str) -> dict[str, str]:
    provider, slash, model = name.partition("/")
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider if slash else "unknown",
        "gen_ai.request.model": model or name,
    }


def _asked(kind: dict[str, str], request: base.Request) -> dict[str, str | int | float]:
    known = {
        "gen_ai.conversation.id": current_session.current_conversation_id(),
        "gen_ai.request.max_tokens": request.max_output,
        "gen_ai.request.temperature": request.temperature,
    }
    return {**kind, **{key: value for key, value in known.items() if value is not None}}
