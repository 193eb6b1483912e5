"""The metrics are in the text format of Prometheus, under stable names."""

from __future__ import annotations

from holdfast.gateway import metrics


def test_counts_and_buckets_add_up() -> None:
    meter = metrics.GatewayMetrics()
    for seconds in (0.1, 0.2, 45.0, 9_999.0):
        meter.observe_turn(seconds)
    meter.count_attempt(1)
    meter.count_attempt(2)
    lines = meter.render({"outgoing_open": 3, "something_else": 1}).decode().splitlines()
    assert 'holdfast_turn_seconds_bucket{le="0.1"} 1.0' in lines
    assert 'holdfast_turn_seconds_bucket{le="0.25"} 2.0' in lines
    assert 'holdfast_turn_seconds_bucket{le="60.0"} 3.0' in lines
    assert 'holdfast_turn_seconds_bucket{le="+Inf"} 4.0' in lines
    assert "holdfast_turn_seconds_count 4.0" in lines
    assert "holdfast_resumed_total 1.0" in lines
    assert "holdfast_outbox_depth 3.0" in lines
    assert not any("something_else" in line for line in lines)


def test_labels_are_escaped_and_counted_separately() -> None:
    meter = metrics.GatewayMetrics()
    meter.count_inbound('a"b\\c\nd')
    meter.count_outcome("http", "answered")
    meter.count_outcome("http", "failed")
    text = meter.render({}).decode()
    assert 'holdfast_inbound_total{platform="a\\"b\\\\c\\nd"} 1.0' in text.split("\n")
    assert 'holdfast_outcomes_total{outcome="answered",platform="http"} 1.0' in text
    assert 'holdfast_outcomes_total{outcome="failed",platform="http"} 1.0' in text
