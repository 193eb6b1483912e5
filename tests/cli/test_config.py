"""Settings come from the environment, the user's file, its profiles, and the project's file."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import platformdirs
import pytest

from holdfast import config, errors, file_modes
from holdfast.model import providers


def load(
    folder: Path, text: str = "", *, project: str | None = None, profile: str | None = None, **env: str
) -> config.Settings:
    """Load settings of the user with the home `folder`, who works in a subfolder of a project."""
    work = folder / "project" / "deep"
    work.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(text, "utf-8")
    if project is not None:
        (folder / "project" / ".holdfast.toml").write_text(project, "utf-8")
    return config.load({"HOLDFAST_HOME": str(folder), **env}, str(work), profile=profile)


def test_defaults_use_the_data_directory_of_the_system() -> None:
    settings = config.load({})
    assert settings.home == platformdirs.user_data_dir("holdfast", False)
    assert settings.database == os.path.join(settings.home, "holdfast.db")
    assert config.load({"HOLDFAST_HOME": "", "HOLDFAST_DB": "", "NO_COLOR": "", "COLUMNS": ""}) == settings
    assert config.load({"HOLDFAST_HOME": "/elsewhere"}).database == os.path.join("/elsewhere", "holdfast.db")


@pytest.mark.parametrize(
    ("env", "name", "value"),
    [
        ({}, "colour", True),
        ({"NO_COLOR": "1"}, "colour", False),
        ({"TERM": "dumb"}, "colour", False),
        ({"COLUMNS": "120"}, "columns", 120),
        ({"COLUMNS": "0"}, "columns", None),
        ({"COLUMNS": "99999"}, "columns", None),
        ({"OPENAI_API_KEY": " key\n", "ANTHROPIC_API_KEY": " \n"}, "keys", {"openai": "key"}),
    ],
)
def test_environment_sets_a_value(env: dict[str, str], name: str, value: object) -> None:
    assert getattr(config.load(env, files=False), name) == value


def test_user_file_sets_paths_relative_to_itself(tmp_path: Path) -> None:
    text = 'database = "mine.db"\n[backup]\nfolder = "copies"\nkeep = 3\n[retention]\narchive = "old"\n'
    text += "[mcpServers.a]\ncommand = 'x'\n[mcpServers.b]\ncommand = 'y'\nenabled = false\n"
    settings = load(tmp_path, text)
    assert settings.database == str(tmp_path / "mine.db")
    assert settings.backup == config.BackupSection(str(tmp_path / "copies"), 24.0, 3)
    assert settings.retention.archive == str(tmp_path / "old")
    assert [each.name for each in settings.servers] == ["a"]
    assert settings.files == (str(tmp_path / "config.toml"),)
    assert load(tmp_path, text, HOLDFAST_DB="other.db").database == "other.db"


PROJECT = "project's file may not set"


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("config.toml", "databse = 'x'", "unknown setting `databse`"),
        ("config.toml", "[providers.lab]\nwindow = 'x'", "`providers.*.window`: expected `int"),
        ("config.toml", "[profiles.work.limits]\nsteps = 'x'", "`profiles.*.limits.steps`: expected `int"),
        ("config.toml", "[retention]\nmax_size = 'huge'", "is not a size"),
        ("config.toml", "[backup", "is not valid TOML"),
        ("project/.holdfast.toml", "database = 'theirs.db'", PROJECT),
        ("project/.holdfast.toml", "[backup]\nfolder = '/tmp'", PROJECT),
        ("project/.holdfast.toml", "[permissions]", PROJECT),
        ("project/.holdfast.toml", "[gateway.allow]\ntelegram = [7]", PROJECT),
    ],
)
def test_invalid_setting_is_refused_with_its_place(tmp_path: Path, file: str, text: str, sentence: str) -> None:
    files = {"text": text} if file == "config.toml" else {"project": text}
    with pytest.raises(errors.SettingInvalid) as refused:
        load(tmp_path, **files)
    assert sentence in str(refused.value)
    assert str(tmp_path / file) in str(refused.value)


def test_environment_overrides_profile_overrides_project(tmp_path: Path) -> None:
    text, project = "[profiles.work]\nmodel = 'of/work'\n[profiles.play]\nmodel = 'of/play'\n", "model = 'of/project'"
    work = {"HOLDFAST_PROFILE": "work"}
    assert load(tmp_path, text, project=project).model == "of/project"
    assert load(tmp_path, text, project=project, **work).model == "of/work"
    assert load(tmp_path, text, project=project, profile="play", **work).model == "of/play"
    assert load(tmp_path, text, project=project, **work, HOLDFAST_MODEL="of/me").model == "of/me"


def test_profile_cannot_remove_permission_rules(tmp_path: Path) -> None:
    text = "[permissions]\ndeny = ['shell(a)']\nask = ['shell(b)']\n"
    text += "[profiles.work.permissions]\ndeny = []\nallow = ['shell(c)']\n"
    assert [rule.effect for rule in load(tmp_path, text, profile="work").permissions] == ["deny", "ask", "allow"]


def test_provider_table_changes_only_the_named_settings(tmp_path: Path) -> None:
    text = "[providers.anthropic]\nwindow = 9\n[providers.openai]\nkey_env = ''\n[providers.lab]\nwindow = 8\n"
    found = load(tmp_path, text, ANTHROPIC_API_KEY="a", OPENAI_API_KEY="o")
    assert found.providers["anthropic"] == msgspec.structs.replace(providers.PROVIDERS["anthropic"], window=9)
    assert found.providers["lab"] == providers.Provider("lab", base_url="https://api.openai.com/v1", window=8)
    assert found.keys == {"anthropic": "a"}
    mine = "[providers.openai]\nbase_url = 'http://mine/v1'\n"
    assert load(tmp_path, mine).providers["openai"].base_url == "http://mine/v1"
    assert load(tmp_path, mine, OPENAI_BASE_URL="http://x/v1").providers["openai"].base_url == "http://x/v1"


def test_gateway_secrets_are_read_from_variables_and_never_shown(tmp_path: Path) -> None:
    text = "[gateway]\nfolder = 'theirs'\n[gateway.http.tokens]\nann = 'ANN'\nben = 'BEN'\n"
    text += "[gateway.hooks.ci]\nsecret_env = 'CI'\n[gateway.loopback]\nsocket = 's.sock'\n"
    found = load(tmp_path, text, ANN="one-secret\n", BEN="", CI="two-secret", OTHER="x")
    assert found.secrets == {"ANN": "one-secret", "CI": "two-secret"}
    assert "-secret" not in repr(found)
    assert found.gateway.folder == str(tmp_path / "theirs")
    assert found.gateway.loopback.socket == str(tmp_path / "s.sock")


@pytest.mark.parametrize("which", ["file", "folder", "target"])
def test_settings_others_can_write_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
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
        with pytest.raises(errors.SettingInvalid, match=rf"other users can write to {shared} .*`chmod go-w {shared}`"):
            config.load(environ, str(tmp_path))
        assert config.database_in_user_file(environ) is None
    shared.chmod(0o755)
    config.load(environ, str(tmp_path))
    if os.geteuid() == 0:
        os.chown(shared, 12345, 12345)
        with pytest.raises(errors.SettingInvalid, match=rf"{shared} belongs to another user \(uid 12345\)"):
            config.load(environ, str(tmp_path))
