"""Values of the store: frozen, decoded on access, readable by older and newer versions."""

from __future__ import annotations

import pytest

from holdfast import errors, types


def message(body: str) -> types.Message:
    return types.Message(1, "u", "talk", "assistant", 0.0, body)


def test_body_is_decoded_on_access_only() -> None:
    broken = message("{not json")
    assert (broken.seq, broken.role, broken.redacted) == (1, "assistant", False)
    with pytest.raises(errors.StoreCorrupt):
        _ = broken.content
    newer = message('{"content":"x","invented":{"later":true}}')
    assert (newer.content, newer.tool_calls, newer.tool_call_id) == ("x", (), None)
    redacted = message("")
    assert (redacted.redacted, redacted.content, redacted.tool_calls, redacted.tool_call_id) == (True, "", (), None)
