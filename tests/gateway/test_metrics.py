"""What is counted is told in a form that Prometheus reads, and never grows without end."""

from __future__ import annotations

from holdfast.gateway import metrics


def test_counts_and_buckets_add_up() -> None:
    meter = metrics.Meter()
    for seconds in (0.1, 0.2, 45.0, 9_999.0):
        meter.turn(seconds)
    meter.begun(1)
    meter.begun(2)
    lines = meter.text({"outgoing_open": 3, "something_else": 1}).splitlines()
    assert 'holdfast_turn_seconds_bucket{le="0.1"} 1' in lines
    assert 'holdfast_turn_seconds_bucket{le="0.25"} 2' in lines
    assert 'holdfast_turn_seconds_bucket{le="60.0"} 3' in lines
    assert 'holdfast_turn_seconds_bucket{le="+Inf"} 4' in lines
    assert "holdfast_turn_seconds_count 4" in lines
    assert "holdfast_resumed_total 1" in lines
    assert "holdfast_outbox_depth 3" in lines


def test_labels_cannot_break_out_and_are_not_without_number() -> None:
    meter = metrics.Meter()
    meter.came('a"b\\c\nd')
    for number in range(2 * metrics.MOST):
        meter.settled(f"p{number}", "answered")
    text = meter.text({})
    assert 'holdfast_inbound_total{platform="a\\"b\\\\c\\nd"} 1' in text.split("\n")
    assert len([line for line in text.splitlines() if line.startswith("holdfast_outcomes")]) <= metrics.MOST
    assert f'{{platform="other",outcome="other"}} {metrics.MOST + 1}' in text
