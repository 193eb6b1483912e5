"""The system prompt: byte-stable."""

from __future__ import annotations

from pathlib import Path

from holdfast.agent import context_files, system_prompt


def test_the_prompt_is_the_same_bytes_every_time(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Use tabs.", encoding="utf-8")
    one, two = (system_prompt.system(context_files.read(str(tmp_path)), "likes tea", "extra") for _ in range(2))
    assert one == two
    assert one.index("Use tabs.") < one.index("extra") < one.index("likes tea")
