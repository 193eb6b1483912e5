"""Settings come from the environment and two files, and only from there."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import platformdirs
import pytest

from holdfast import config, errors, file_modes
from holdfast.model import providers
from tests.support import cli_zygote


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
    assert settings.backup == config.BackupSection(str(tmp_path / "copies"), 24.0, 3)
    assert settings.files == (str(tmp_path / "config.toml"),)
    over = config.load({"HOLDFAST_HOME": str(tmp_path), "HOLDFAST_DB": "other.db"}, str(tmp_path))
    assert over.database == "other.db"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("databse = 'x'", "unknown setting `databse`"),
        ("[backup]\nfoldr = 'x'", "unknown setting `backup.foldr`"),
        ("[providers.lab]\nbad = 1", "unknown setting `providers.*.bad`"),
        ("[providers.lab]\nwindow = 'x'", "`providers.*.window`: expected `int"),
        ("[profiles.work.limits]\nsteps = 'x'", "`profiles.*.limits.steps`: expected `int"),
        ("fallback = [1]", "`fallback`: expected `str`"),
        ("[backup]\nkeep = 0", "`backup.keep`"),
        ("[backup]\nkeep = 'seven'", "`backup.keep`"),
        ("[retention]\nmax_size = 'huge'", "is not a size"),
        ("[compaction]\nsoft = 1.5", "`compaction.soft`"),
        ("[memory]\nreview = 'sometimes'", "`memory.review`"),
        ("[plugins]\ndisabled = 'all'", "`plugins.disabled`"),
        ("[backup", "is not valid TOML"),
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
    with pytest.raises(errors.SettingInvalid, match="is not valid TOML"):
        config.load({"HOLDFAST_HOME": str(tmp_path)}, str(tmp_path))


def test_the_program_says_what_is_wrong_with_a_file_and_leaves_with_2(
    tmp_path: Path, waiting: cli_zygote.Server
) -> None:
    (tmp_path / "config.toml").write_text("colour = true", encoding="utf-8")
    ran = waiting.run(tmp_path, "sessions", "list", env={"HOLDFAST_HOME": str(tmp_path)})
    assert ran.code == 2
    assert "unknown setting `colour`" in ran.sentence


# --- what counts more ----------------------------------------------------------------------------------


def test_an_address_of_the_environment_counts_more_than_that_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[providers.openai]\nbase_url = 'http://mine/v1'\n", "utf-8")
    environ = {"HOLDFAST_HOME": str(tmp_path), "OPENAI_BASE_URL": "http://x/v1"}
    assert config.load(environ, str(tmp_path)).providers["openai"].base_url == "http://x/v1"
    del environ["OPENAI_BASE_URL"]
    assert config.load(environ, str(tmp_path)).providers["openai"].base_url == "http://mine/v1"


@pytest.mark.parametrize(
    ("provider", "needed"),
    [
        (providers.PROVIDERS["openai"], True),
        (providers.Provider("openai", "openai", "https://api.openai.com/v1/", "OPENAI_API_KEY"), True),
        (providers.Provider("openai", "openai", "http://x/v1", "OPENAI_API_KEY"), False),
        (providers.Provider("openai", "openai", "http://x/v1", "OTHER_KEY"), True),
        (providers.Provider("lab", "openai", "http://x/v1", "LAB_KEY"), True),
        (providers.Provider("lab", "openai", "http://x/v1"), False),
    ],
)
def test_known_company_at_another_address_needs_no_key(provider: providers.Provider, needed: bool) -> None:
    assert providers.needs_key(provider) is needed


def test_a_table_of_a_known_provider_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        "[providers.anthropic]\nwindow = 9\n[providers.openai]\nkey_env = ''\n[providers.lab]\nwindow = 8\n", "utf-8"
    )
    environ = {"HOLDFAST_HOME": str(tmp_path), "ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o"}
    found = config.load(environ, str(tmp_path))
    assert found.providers["anthropic"] == msgspec.structs.replace(providers.PROVIDERS["anthropic"], window=9)
    assert found.providers["lab"] == providers.Provider("lab", base_url="https://api.openai.com/v1", window=8)
    assert found.keys == {"anthropic": "a"}


def test_a_key_is_taken_without_the_line_break_that_a_file_of_keys_has() -> None:
    settings = config.load({"OPENAI_API_KEY": " key\n", "ANTHROPIC_API_KEY": " \n"}, files=False)
    assert settings.keys == {"openai": "key"}


def test_a_profile_that_a_flag_names_counts_more_than_that_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[profiles.a]\nmodel = 'of/a'\n[profiles.b]\nmodel = 'of/b'\n", "utf-8")
    environ = {"HOLDFAST_HOME": str(tmp_path), "HOLDFAST_PROFILE": "a"}
    assert config.load(environ, str(tmp_path), profile="b").model == "of/b"


def test_the_users_own_file_is_no_projects_file_though_the_work_is_done_beside_it(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("database = 'mine.db'", "utf-8")
    (tmp_path / ".holdfast.toml").symlink_to(tmp_path / "config.toml")
    assert config.load({"HOLDFAST_HOME": str(tmp_path)}, str(tmp_path)).database == str(tmp_path / "mine.db")


def test_a_rule_that_cannot_be_read_is_refused_in_every_profile(tmp_path: Path) -> None:
    with pytest.raises(errors.SettingInvalid, match=r"permissions\.deny"):
        settings_of(tmp_path, "[profiles.work.permissions]\ndeny = ['shell()']\n")


def test_paths_are_meant_from_where_the_file_is_and_servers_can_be_turned_off(tmp_path: Path) -> None:
    said = "[retention]\narchive = 'old'\n[mcpServers.a]\ncommand = 'x'\n"
    said += "[mcpServers.b]\ncommand = 'y'\nenabled = false\n"
    settings = settings_of(tmp_path, said)
    assert settings.retention.archive == str(tmp_path / "old")
    assert [each.name for each in settings.servers] == ["a"]


@pytest.mark.parametrize(
    ("text", "size"), [("800", 800), ("3kB", 3_000), ("500MB", 500_000_000), ("2 g", 2_000_000_000), (" 7b ", 7)]
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert config.parse_size(text) == size


def test_a_working_folder_that_was_removed_has_no_projects_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert config.project_file(None) is None


def test_secrets_of_the_gateway_are_in_the_variables_that_are_named_and_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        "[gateway]\nfolder = 'theirs'\n[gateway.http.tokens]\nann = 'ANN'\nben = 'BEN'\n"
        "[gateway.hooks.ci]\nsecret_env = 'CI'\n[gateway.loopback]\nsocket = 's.sock'\n",
        "utf-8",
    )
    given = {"HOLDFAST_HOME": str(tmp_path), "ANN": "one-secret\n", "BEN": "", "CI": "two-secret", "OTHER": "x"}
    found = config.load(given, str(tmp_path))
    assert found.secrets == {"ANN": "one-secret", "CI": "two-secret"}
    assert "-secret" not in repr(found)
    assert found.gateway.folder == str(tmp_path / "theirs")
    assert found.gateway.loopback is not None
    assert found.gateway.loopback.socket == str(tmp_path / "s.sock")


@pytest.mark.parametrize("which", ["file", "folder", "target"])
def test_settings_that_others_may_write_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setattr(file_modes, "_is_private", lambda gid: False)
    home, away = tmp_path / "home", tmp_path / "dotfiles"
    home.mkdir()
    away.mkdir()
    file = away / "config.toml" if which == "target" else home / "config.toml"
    file.write_text('model = "offline"\n', encoding="utf-8")
    if which == "target":
        (home / "config.toml").symlink_to(file)
    environ = {"HOLDFAST_HOME": str(home)}
    assert config.load(environ, str(tmp_path)).model == "offline"
    shared = {"file": file, "folder": home, "target": away}[which]
    for mode in (0o775, 0o757):
        shared.chmod(mode)
        with pytest.raises(
            errors.SettingInvalid, match=rf"other users can write to {shared} .*`chmod go-w {shared}`\.$"
        ):
            config.load(environ, str(tmp_path))
        assert config.database_in_user_file(environ) is None
    shared.chmod(0o755)
    config.load(environ, str(tmp_path))
    if os.geteuid() == 0:
        os.chown(shared, 12345, 12345)
        with pytest.raises(errors.SettingInvalid, match=rf"{shared} belongs to another user \(uid 12345\)"):
            config.load(environ, str(tmp_path))


def test_missing_settings_in_a_shared_folder_are_no_mistake(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    config.load({"HOLDFAST_HOME": str(tmp_path)}, str(tmp_path))
