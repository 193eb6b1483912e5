"""What is answered to `initialize`: what works, in the version that is spoken, as the protocol wants it said."""

from __future__ import annotations

from importlib import util
from typing import Any

import pytest

from holdfast.acp import channel
from tests.support import acp_schema


def answer(**params: Any) -> dict[str, Any]:
    made = channel.initialize_result({"protocolVersion": 1, **params}, "1.2.3")
    assert made is not None
    return made


def test_the_answer_is_one_of_the_protocol() -> None:
    acp_schema.vendored().check("agent", "initialize", "Response", answer())


@pytest.mark.parametrize("asked", [0, 1, 2, 65535])
def test_whatever_version_is_asked_for_the_one_that_is_spoken_is_answered(asked: int) -> None:
    made = channel.initialize_result({"protocolVersion": asked}, "1.2.3")
    assert made is not None
    assert made["protocolVersion"] == 1


def test_only_what_works_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    said = answer()["agentCapabilities"]
    assert said["mcpCapabilities"] == {"http": True, "sse": True}
    assert said["promptCapabilities"]["audio"] is False
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    assert answer()["agentCapabilities"]["mcpCapabilities"] == {"http": False, "sse": False}


@pytest.mark.parametrize("said", [None, [], "x", {"clientCapabilities": 7}, {}])
def test_an_editor_that_does_not_say_what_it_can_do_can_do_nothing(said: object) -> None:
    assert channel.parse_client_capabilities(said) == {}
