"""`holdfast config`: values with their sources, every mistake with its place, and edits that never break the file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import config, errors
from holdfast.cli import config_check
from tests.support import documents
from tests.support.cli_process import Configure, Holdfast, Run

WRONG = """\
modell = "x"
model = "nobody/some-model"
fallback = ["offline", "also-nobody"]

[backup]
keep = "seven"
foldr = "x"

[limits]
steps = 0

[providers.lab]
kind = "other"
window = -1

[models."lab/a.b"]
price = { input = "much" }

[retention]
max_size = "huge"

[permissions]
deny = ["shell()", "shell(curl)"]

[mcpServers.both]
command = "x"
url = "http://x"

[profiles.work]
modle = "y"
limits = { steps = "many" }
"""
PLACES = [
    *[(1, "modell"), (2, "model"), (3, "fallback"), (6, "backup.keep"), (7, "backup.foldr"), (10, "limits.steps")],
    *[(13, "providers.lab.kind"), (14, "providers.lab.window"), (17, 'models."lab/a.b".price')],
    *[(17, 'models."lab/a.b".price.input'), (20, "retention.max_size"), (23, "permissions.deny")],
    *[(25, "mcpServers.both"), (30, "profiles.work.modle"), (31, "profiles.work.limits.steps")],
]


def test_check_names_every_mistake_with_file_line_and_place(holdfast: Holdfast, configure: Configure) -> None:
    file = str(configure(WRONG))
    done = holdfast("config", "check", "--json")
    assert (done.code, done.err) == (1, "")
    assert sorted((each["line"], each["place"]) for each in done.data["mistakes"]) == sorted(PLACES)
    assert {each["file"] for each in done.data["mistakes"]} == {file}
    text = holdfast("config", "check")
    assert (text.code, text.out.count("\n")) == (1, len(PLACES))
    assert f"{file}:6: `backup.keep`: expected `int`, got `str`.\n" in text.out


HOOKS_WITHOUT_HTTP = "[gateway.http]\nenabled = false\n[gateway.loopback]\n[gateway.hooks.ci]\nsecret_env = 'CI'"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("[gateway.allow]\ntelegram = [1.5]", "gateway.allow.*", "expected"),
        ("compaction.model = 'lap/x'\n[providers.lab]\nkind = 'openai'", "compaction.model", "lap"),
        (HOOKS_WITHOUT_HTTP, "gateway.http.enabled", "hooks"),
        ("[gateway]\nbusy = 'loud'", "gateway.busy", "loud"),
        ("[gateway.admins]\ntelegram = ['*']", "gateway.admins.telegram", "only valid in `allow`"),
        ("[gateway.allow]\ntelegram = [' 42']", "gateway.allow.telegram", "is not a sender id"),
        ("[gateway.allow]\nTelegram = [42]", "gateway.allow.Telegram", "lower-case letters"),
        ("[gateway.http.tokens]\nann = 'sk-not a variable'", "gateway.http.tokens.ann", "an environment variable"),
        ("[gateway.hooks.ci]\nsecret_env = 'two words'", "gateway.hooks.ci.secret_env", "not the secret"),
        ("[gateway.reset]\nwhen = 'daily'\nhour = 24", "gateway.reset", "0 to 23"),
        ("model = \n", "", "The file is not valid TOML"),
    ],
)
def test_check_finds_mistakes_of_and_between_tables(configure: Configure, text: str, place: str, words: str) -> None:
    (found,) = config_check.check_file(str(configure(text)))
    assert (found.place, words in found.what) == (place, True)


def test_check_reports_settings_that_a_project_may_not_set(holdfast: Holdfast, tmp_path: Path) -> None:
    file = tmp_path / ".holdfast.toml"
    file.write_text("model = 'nobody/x'\ndatabase = 'theirs.db'\n", "utf-8")
    found = holdfast("config", "check", "--json").data["mistakes"]
    assert {(each["line"], each["place"]) for each in found} == {(1, "model"), (2, "database")}


def test_check_without_mistakes_succeeds(holdfast: Holdfast, configure: Configure) -> None:
    assert holdfast("config", "check") == (0, "No mistakes found.\n", "")
    file = configure("model = 'ollama/x'\nfallback = ['holdfast/offline']\n[profiles.work]\nmodel = 'offline'\n")
    assert holdfast("config", "check", "--json").data == {"files": [str(file)], "mistakes": []}


@pytest.mark.parametrize("text", [line for line in WRONG.split("\n\n") if "nobody" not in line])
def test_mistakes_match_the_errors_of_loading(home: Path, configure: Configure, text: str) -> None:
    assert config_check.check_file(str(configure(text)))
    with pytest.raises(errors.SettingInvalid):
        config.load({"HOLDFAST_HOME": str(home)}, str(home))


COMMANDS = {" ".join(command) for command in documents.commands()}
NEED_NO_SETTINGS = {"config path", "config check", "config edit", "completion", "tour", "doctor"}


@pytest.mark.parametrize("words", sorted(COMMANDS - NEED_NO_SETTINGS))
def test_command_refuses_invalid_settings(holdfast: Holdfast, home: Path, configure: Configure, words: str) -> None:
    file = configure(WRONG)
    done = holdfast(*words.split())
    assert done.code == 2
    assert done.sentence.startswith(f"holdfast: {file}: ")
    assert done.sentence.endswith(" Run `holdfast config check` to list all mistakes.")
    assert list(home.iterdir()) == [file]


@pytest.mark.parametrize("words", ["config path", "completion bash", "--help", "tour --help", "config show -h"])
def test_command_that_needs_none_ignores_invalid_settings(holdfast: Holdfast, configure: Configure, words: str) -> None:
    configure(WRONG)
    assert holdfast(*words.split()).code == 0


def test_show_names_the_source_of_values(holdfast: Holdfast, configure: Configure, home: Path, tmp_path: Path) -> None:
    user_file, project_file = str(home / "config.toml"), tmp_path / ".holdfast.toml"
    configure(
        "model = 'offline'\nfallback = ['offline']\n[limits]\nsteps = 7\ncost = 1.0\n"
        "[permissions]\ndeny = ['shell(a)']\n"
        '[models."lab/a.b"]\nwindow = 9\n[providers.openai]\nbase_url = "http://mine/v1"\nwindow = 8\n'
        "[profiles.work]\nlimits = { steps = 3 }\npermissions = { deny = ['shell(b)'] }\n[profiles.play]\n"
    )
    project_file.write_text("fallback = []", "utf-8")
    env = {"HOLDFAST_DB": "else.db", "HOLDFAST_MODEL": "lab/x", "OPENAI_BASE_URL": "http://x/v1"}
    done = holdfast("config", "show", "--json", "--profile", "work", **env)
    assert (done.code, done.err) == (0, "")
    shown = {key: (each["value"], each["source"]) for key, each in done.data["settings"].items()}
    expected = {
        "home": (str(home), "HOLDFAST_HOME"),
        "profile": ("work", "--profile"),
        "database": ("else.db", "HOLDFAST_DB"),
        "model": ("lab/x", "HOLDFAST_MODEL"),
        "fallback": ([], str(project_file)),
        "limits.steps": (3, "profile work"),
        "permissions.deny": (["shell(a)", "shell(b)"], f"profile work and {user_file}"),
        "compaction.soft": (0.65, "default"),
        'models."lab/a.b".window': (9, user_file),
        "providers.openai.base_url": ("http://x/v1", "OPENAI_BASE_URL"),
        "providers.openai.key_env": ("OPENAI_API_KEY", "default"),
    }
    assert {key: shown[key] for key in expected} == expected
    assert (shown["profiles.work"][0], shown["profiles.play"][0]) == ("chosen", "not chosen")
    text = holdfast("config", "show", HOLDFAST_DB="")
    lines = [line.split() for line in text.out.splitlines()]
    assert len(lines) == len(shown)
    assert ["limits.steps", user_file, "7"] in lines
    assert ["providers.openai.base_url", user_file, '"http://mine/v1"'] in lines


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_show_hides_secrets(holdfast: Holdfast, configure: Configure, form: list[str]) -> None:
    hidden = ["hidden1", "hidden2", "hidden3", "hidden4", "hidden5", "hidden6"]
    configure(
        '[mcpServers.a]\ncommand = "x"\n'
        'args = ["--token", "hidden1", "--api-key=hidden2", "plain", "--key", "${KEY}"]\n'
        '[mcpServers.a.env]\nA = "hidden3"\nB = "${SHOWN}"\n[mcpServers.b]\nurl = "https://x/"\n'
        '[mcpServers.b.headers]\nAuthorization = "Bearer hidden4"\n'
        '[providers.lab]\nbase_url = "http://me:hidden5@lab/v1"\nkey_env = "LAB"\n'
    )
    done = holdfast("config", "show", *form, LAB="hidden6", COLUMNS="9999")
    assert done.code == 0
    assert [each for each in hidden if each in done.out] == []
    for shown in ("${SHOWN}", "${KEY}", "plain", "keys.lab"):
        assert shown in done.out


def test_profile_is_chosen_by_flag_or_variable(holdfast: Holdfast, home: Path, configure: Configure) -> None:
    configure("model = 'nobody/x'\n[profiles.work]\nmodel = 'offline'\ndatabase = 'work.db'\n[profiles.play]\n")
    assert "nobody" in holdfast("-p", "hello").sentence
    assert holdfast("-p", "hello", "--profile", "work").code == 0
    assert "2" in holdfast("sessions", "list", HOLDFAST_PROFILE="work").out
    assert (home / "work.db").exists()
    assert not (home / "holdfast.db").exists()
    unknown = holdfast("-p", "hello", "--profile", "wrok")
    assert unknown.code == 2
    assert "'wrok'" in unknown.sentence
    assert "work, play" in unknown.sentence
    assert holdfast("config", "check", HOLDFAST_PROFILE="wrok").code == 1


Edit = Callable[[str], Run]


@pytest.fixture
def edit(holdfast: Holdfast, tmp_path: Path) -> Edit:
    """Run `config edit` with an editor that runs this code on `file`."""

    def run(code: str) -> Run:
        script = tmp_path / "an editor.py"
        script.write_text(f"import sys, pathlib\nfile = pathlib.Path(sys.argv[-1])\n{code}\n", "utf-8")
        return holdfast("config", "edit", VISUAL=f"'{sys.executable}' '{script}' --wait", EDITOR="false")

    return run


APPEND = "file.write_text(file.read_text() + 'model = \"offline\"\\n')"


@pytest.mark.parametrize("original", [0o640, 0o444])
def test_edit_replaces_the_file_and_keeps_its_mode(edit: Edit, home: Path, configure: Configure, original: int) -> None:
    file = configure("# mine\n")
    file.chmod(original)
    done = edit(f"assert file.stat().st_mode & 0o777 in (0o600, 0o640); {APPEND}")
    assert (done.code, done.out) == (0, "")
    assert file.read_text() == '# mine\nmodel = "offline"\n'
    assert file.stat().st_mode & 0o7777 == original
    assert os.listdir(home) == ["config.toml"]


def test_edit_creates_a_private_file_with_hints(edit: Edit, home: Path) -> None:
    assert edit(f"assert '# model' in file.read_text() and file.stat().st_mode & 0o77 == 0\n{APPEND}").code == 0
    assert (home / "config.toml").stat().st_mode & 0o7777 == 0o600


def test_edit_keeps_a_symbolic_link(edit: Edit, home: Path, tmp_path: Path) -> None:
    (tmp_path / "dotfiles.toml").touch()
    (home / "config.toml").symlink_to(tmp_path / "dotfiles.toml")
    assert edit("file.write_text('fallback = []')").code == 0
    assert (home / "config.toml").is_symlink()
    assert (tmp_path / "dotfiles.toml").read_text() == "fallback = []"


def test_edit_with_a_mistake_keeps_a_draft_for_the_next_edit(edit: Edit, home: Path, configure: Configure) -> None:
    file = configure("# mine")
    done = edit("file.write_text('modell = 1\\n')")
    assert done.code == 1
    assert "`modell`: unknown setting." in done.err
    assert file.read_text() == "# mine"
    draft = home / "config.draft.toml"
    assert str(draft) in done.err
    assert draft.read_text() == "modell = 1\n"
    assert edit("file.write_text(file.read_text()[:4] + 'l = \"offline\"')").code == 0
    assert file.read_text() == 'model = "offline"'


@pytest.mark.parametrize(
    ("code", "exit_code", "sentence"),
    [
        ("", 0, "Nothing was changed."),
        ("sys.exit(3)", 1, "config.toml was not changed."),
        ("file.unlink()", 0, "Nothing was changed."),
    ],
)
def test_edit_without_change_creates_no_file(edit: Edit, home: Path, code: str, exit_code: int, sentence: str) -> None:
    assert sentence in edit(code).failure(exit_code)
    assert list(home.glob("config*")) == []


def test_edit_does_not_overwrite_a_concurrent_change(edit: Edit, home: Path, configure: Configure) -> None:
    file = configure("# mine")
    done = edit(f"file.write_text('# edited'); pathlib.Path({str(file)!r}).write_text('# theirs')")
    assert "Another process" in done.failure(1)
    assert file.read_text() == "# theirs"
    # The next edit begins with the other process's content.
    assert edit("file.write_text(file.read_text() + ' and mine')").code == 0
    assert file.read_text() == "# theirs and mine"
    assert [each.read_text() for each in home.glob("config.draft-*.toml")] == ["# edited"]


@pytest.mark.parametrize("name", ["true; touch made", "$(touch made)", "`touch made`", "no-such-editor", "'"])
def test_edit_runs_no_shell(holdfast: Holdfast, home: Path, tmp_path: Path, name: str) -> None:
    done = holdfast("config", "edit", EDITOR=name, VISUAL="")
    if name == "no-such-editor":
        sentence = f"The editor no-such-editor failed. {home / 'config.toml'} was not changed."
        assert (done.code, done.sentence) == (1, sentence)
    assert not (tmp_path / "made").exists()
    assert not (home / "config.toml").exists()
