"""Settings come from the environment, and only from there."""

from __future__ import annotations

import os

import platformdirs
import pytest

from holdfast import config


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
