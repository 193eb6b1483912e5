"""Settings come from the environment and two files, and only from there."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
import pytest

from holdfast import config, errors
from tests.cli import program


def test_without_variables_the_data_directory_of_the_system_is_used() -> None:
    settings = config.load({})
    assert settings.home == platformdirs.user_data_dir("holdfast", False)
    assert settings.database == os.path.join(settings.home, "holdfast.db")


def test_home_overrides_the_data_directory() -> None:
    settings = config.load({"HOLDFAST_HOME": "/elsewhere"})
    assert settings.database == os.path.join(os.path.abspath("/elsewhere"), "holdfast.db")


def test_a_named_database_overrides_the_home() -> None:
    assert config.load({"HOLDFAST_HOME": "/elsewhere", "HOLDFAST_DB": "mine.db"}).database == "mine.db"


def test_empty_variables_count_as_not_set() -> None:
    assert config.load({"HOLDFAST_HOME": "", "HOLDFAST_DB": "", "NO_COLOR": "", "COLUMNS": ""}) == config.load({})


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colour_can_be_declined(environ: dict[str, str]) -> None:
    assert config.load({}).colour
    assert not config.load(environ).colour


@pytest.mark.parametrize(
    ("given", "columns"), [("120", 120), ("0", None), ("-5", None), ("wide", None), ("99999", None)]
)
def test_columns_are_a_sensible_number_or_nothing(given: str, columns: int | None) -> None:
    assert config.load({"COLUMNS": given}).columns == columns


def settings_of(folder: Path, users: str = "", projects: str | None = None) -> config.Settings:
    work = folder / "project" / "deep"
    work.mkdir(parents=True)
    (folder / "config.toml").write_text(users, encoding="utf-8")
    if projects is not None:
        (folder / "project" / ".holdfast.toml").write_text(projects, encoding="utf-8")
    return config.load({"HOLDFAST_HOME": str(folder)}, str(work))


def test_the_users_file_sets_what_the_environment_does_not(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, 'database = "mine.db"\n[backup]\nfolder = "copies"\nkeep = 3\n')
    assert settings.database == str(tmp_path / "mine.db")
    assert settings.backup == config.Backup(str(tmp_path / "copies"), 24.0, 3)
    assert settings.files == (str(tmp_path / "config.toml"),)
    over = config.load({"HOLDFAST_HOME": str(tmp_path), "HOLDFAST_DB": "other.db"}, str(tmp_path))
    assert over.database == "other.db"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("databse = 'x'", "there is no setting `databse`"),
        ("[backup]\nfoldr = 'x'", "there is no setting `backup.foldr`"),
        ("[backup]\nkeep = 0", "`backup.keep`"),
        ("[backup]\nkeep = 'seven'", "`backup.keep`"),
        ("[retention]\nmax_size = 'huge'", "is not a size"),
        ("[compaction]\nsoft = 1.5", "`compaction.soft`"),
        ("[memory]\nreview = 'sometimes'", "`memory.review`"),
        ("[plugins]\ndisabled = 'all'", "`plugins.disabled`"),
        ("[backup", "is not TOML"),
        ("backup = 3", "`backup`"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_place(tmp_path: Path, said: str, told: str) -> None:
    with pytest.raises(errors.SettingInvalid) as refused:
        settings_of(tmp_path, said)
    assert told in str(refused.value)
    assert str(tmp_path / "config.toml") in str(refused.value)


@pytest.mark.parametrize(
    "said", ["database = 'theirs.db'", "[backup]\nfolder = '/tmp'", "evil = 1", "[memory]\nreview = true"]
)
def test_a_projects_file_says_nothing_about_where_data_is(tmp_path: Path, said: str) -> None:
    with pytest.raises(errors.SettingInvalid, match="project's file may not set"):
        settings_of(tmp_path, projects=said)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(errors.SettingInvalid, match="is not TOML"):
        config.load({"HOLDFAST_HOME": str(tmp_path)}, str(tmp_path))


def test_the_program_says_what_is_wrong_with_a_file_and_leaves_with_2(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("colour = true", encoding="utf-8")
    ran = program.run(tmp_path, "sessions", "list", env={"HOLDFAST_HOME": str(tmp_path)})
    assert ran.code == 2
    assert "there is no setting `colour`" in ran.sentence
