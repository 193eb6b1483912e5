"""OpenTelemetry traces and metrics, if its API is installed (extra `otel`).

Only the API is used: the operator configures the exporter, for example with `opentelemetry-instrument`. Model calls
follow OpenTelemetry's conventions for generative AI. Traces contain no message texts.
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
def install(tracers: trace.TracerProvider | None = None, meters: metrics.MeterProvider | None = None) -> Iterator[Wrap]:
    """Trace the gateway until the end of the block, and yield a function that wraps models to trace their calls.

    Without providers, those of the process are used.
    """
    try:
        from opentelemetry import metrics, trace  # noqa: PLC0415 -- an optional dependency
    except ImportError:
        yield lambda model: model
        return
    instruments = Instruments(
        trace.get_tracer(SCOPE, tracer_provider=tracers),
        metrics.get_meter(SCOPE, meter_provider=meters),
        trace.SpanKind.CLIENT,
        trace.StatusCode.ERROR,
    )
    before, spans.tracer = spans.tracer, instruments.start_span
    try:
        yield lambda model: TracedModel(model, instruments)
    finally:
        spans.tracer = before


class Instruments:
    """The tracer and the metric instruments."""

    def __init__(
        self, tracer: trace.Tracer, meter: metrics.Meter, client: trace.SpanKind, error: trace.StatusCode
    ) -> None:
        self.tracer, self.client, self._error = tracer, client, error
        self.seconds = meter.create_histogram("gen_ai.client.operation.duration", "s")
        self.tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}")

    @contextmanager
    def start_span(self, name: spans.Name, attributes: Mapping[str, spans.Value]) -> Iterator[spans.SetAttribute]:
        with self.tracer.start_as_current_span(
            name, attributes=dict(attributes), record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span.set_attribute
            except BaseException as error:
                self.record_error(span, error)
                raise

    def record_error(self, span: trace.Span, error: BaseException) -> None:
        """Record the type of an error; its message may contain user text."""
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(self._error)


class TracedModel:
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
        kind, began, usage = _model_attributes(self.name), monotonic(), types.Usage()
        # Not the current span: the reader of a stream may run other code between two deltas.
        span = self._instruments.tracer.start_span(
            f"chat {kind['gen_ai.request.model']}",
            kind=self._instruments.client,
            attributes=_request_attributes(kind, request),
        )
        try:
            async with aclosing(self.inner.stream(request)) as deltas:
                async for delta in deltas:
                    usage = delta.usage if isinstance(delta, base.UsageDelta) else usage
                    _record_delta(span, delta)
                    yield delta
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                self._instruments.record_error(span, error)
            raise
        finally:
            self._instruments.seconds.record(monotonic() - began, kind)
            for way, count in (("input", usage.input), ("output", usage.output)):
                span.set_attribute(f"gen_ai.usage.{way}_tokens", count)
                self._instruments.tokens.record(count, {**kind, "gen_ai.token.type": way})
            span.end()


def _record_delta(span: trace.Span, delta: base.Delta) -> None:
    match delta:
        case base.FinishDelta(reason):
            span.set_attribute("gen_ai.response.finish_reasons", [_FINISHES[reason]])
        case base.FallbackDelta(model):
            span.set_attribute("gen_ai.response.model", _model_attributes(model)["gen_ai.request.model"])
        case _:
            pass


def _model_attributes(name: str) -> dict[str, str]:
    provider, slash, model = name.partition("/")
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider if slash else "unknown",
        "gen_ai.request.model": model or name,
    }


def _request_attributes(kind: dict[str, str], request: base.Request) -> dict[str, str | int | float]:
    known = {
        "gen_ai.conversation.id": current_session.current_conversation_id(),
        "gen_ai.request.max_tokens": request.max_output,
        "gen_ai.request.temperature": request.temperature,
    }
    return {**kind, **{key: value for key, value in known.items() if value is not None}}
