"""The page docs/guides/editors.md has valid settings, and the limits, modes and codes of the program."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from holdfast.acp import channel, modes
from holdfast.rpc import frames

PAGE = (Path(__file__).parent.parent.parent / "docs" / "guides" / "editors.md").read_text("utf-8")
JSON = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
OTHERS = re.findall(r"```(?:lua|elisp)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", JSON)
def test_json_settings_start_the_program(text: str) -> None:
    ((agents, found),) = json.loads(text).items()
    assert agents in ("agent_servers", "acp.agents")
    assert found["Holdfast"]["command"].endswith("holdfast")
    assert found["Holdfast"]["args"] == ["acp"]


def test_editors_modes_limits_and_codes_are_complete() -> None:
    assert (len(JSON), len(OTHERS)) == (3, 3)
    named = re.findall(r"\*([A-Z][a-z ]+)\*", PAGE.partition("**Modes.**")[2].partition("\n\n")[0])
    assert {*named} == {each.name for each in modes.mode_state(modes.DEFAULT).available_modes}
    assert f"at most {channel.MAX_FRAME_BYTES >> 20} MiB" in PAGE
    codes = {-int(code) for code in re.findall(r"^\| −(\d+) \|", PAGE, re.MULTILINE)}
    assert codes >= {
        frames.PARSE_ERROR,
        frames.INVALID_REQUEST,
        frames.METHOD_NOT_FOUND,
        frames.INVALID_PARAMS,
        frames.INTERNAL_ERROR,
        frames.BUSY,
        -32002,
    }
