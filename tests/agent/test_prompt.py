"""The system prompt: the project's words, byte-stable."""

from __future__ import annotations

from pathlib import Path

from holdfast.agent import prompt


def test_the_projects_file_is_found_up_to_where_the_repository_begins(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("outside", encoding="utf-8")
    repository = tmp_path / "repository"
    deep = repository / "a" / "b"
    deep.mkdir(parents=True)
    (repository / ".git").mkdir()
    assert prompt.context_files(str(deep)) == []
    (repository / "AGENTS.md").write_text("Use tabs.", encoding="utf-8")
    assert prompt.context_files(str(deep)) == [("AGENTS.md", "Use tabs.")]
    (deep / "AGENTS.md").write_text("Use spaces.", encoding="utf-8")
    assert prompt.context_files(str(deep)) == [("AGENTS.md", "Use spaces.")]


def test_without_a_repository_only_the_folder_itself_is_looked_into(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("outside", encoding="utf-8")
    inner = tmp_path / "inner"
    inner.mkdir()
    assert prompt.context_files(str(inner)) == []
    assert prompt.context_files(str(tmp_path)) == [("AGENTS.md", "outside")]


def test_a_huge_or_strange_file_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_bytes(b"\xff\xfe" + b"x" * 100_000)
    ((_, text),) = prompt.context_files(str(tmp_path))
    assert len(text) < prompt.MAX_FILE + 100
    assert text.endswith("[The file goes on.]")


def test_the_prompt_is_the_same_bytes_every_time(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Use tabs.", encoding="utf-8")
    one, two = (prompt.system(str(tmp_path), "likes tea", "extra") for _ in range(2))
    assert one == two
    assert one.index("Use tabs.") < one.index("extra") < one.index("likes tea")
