"""The page docs/guides/editors.md has valid settings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent.parent / "docs" / "guides" / "editors.md").read_text("utf-8")
JSON = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", JSON)
def test_json_settings_start_the_program(text: str) -> None:
    ((agents, found),) = json.loads(text).items()
    assert agents in ("agent_servers", "acp.agents")
    assert found["Holdfast"]["command"].endswith("holdfast")
    assert found["Holdfast"]["args"] == ["acp"]
