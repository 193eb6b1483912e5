"""`holdfast config`: what is set and by whom, every mistake with its place, and changes that leave no wrong file."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import config, errors
from holdfast.cli import config_check
from tests.support import cli_commands, cli_in_process, cli_process

Holdfast = Callable[..., cli_process.Run]
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


@pytest.fixture
def holdfast(tmp_path: Path) -> Holdfast:
    """The program, without a process of its own."""

    def run(*arguments: str, **env: str) -> cli_process.Run:
        return cli_in_process.run(tmp_path, *arguments, env=env)

    return run


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir(mode=0o700)
    return path


# --- mistakes ------------------------------------------------------------------------------------------


def test_every_mistake_is_named_with_its_file_line_and_place(holdfast: Holdfast, home: Path) -> None:
    (home / "config.toml").write_text(WRONG, "utf-8")
    done = holdfast("config", "check", "--json")
    assert (done.code, done.err) == (1, "")
    found = [(each["line"], each["place"]) for each in done.data["mistakes"]]
    assert sorted(found) == sorted(
        [
            (1, "modell"),
            (2, "model"),
            (3, "fallback"),
            (6, "backup.keep"),
            (7, "backup.foldr"),
            (10, "limits.steps"),
            (13, "providers.lab.kind"),
            (14, "providers.lab.window"),
            (17, 'models."lab/a.b".price.input'),
            (17, 'models."lab/a.b".price'),
            (20, "retention.max_size"),
            (23, "permissions.deny"),
            (25, "mcpServers.both"),
            (30, "profiles.work.modle"),
            (31, "profiles.work.limits.steps"),
        ]
    )
    assert {each["file"] for each in done.data["mistakes"]} == {str(home / "config.toml")}
    told = holdfast("config", "check")
    assert told.code == 1
    assert told.out.count("\n") == len(found)
    assert f"{home / 'config.toml'}:6: `backup.keep`: expected `int`, got `str`.\n" in told.out


def test_mistakes_after_one_in_a_table_of_unknown_name_are_found(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[gateway]\nprofil = 'x'\n[gateway.allow]\ntelegram = [1.5]\n", "utf-8")
    places = sorted(each.place for each in config_check.check_file(str(path)))
    assert places == ["gateway.allow.*", "gateway.profil"]


@pytest.mark.parametrize(
    ("text", "told"),
    [("model = \n", ":1: The file is not valid TOML"), ("\x00", "is not valid TOML"), ("[a\nb]", "is not valid TOML")],
)
def test_what_is_no_toml_is_one_mistake(holdfast: Holdfast, home: Path, text: str, told: str) -> None:
    (home / "config.toml").write_text(text, "utf-8")
    done = holdfast("config", "check")
    assert (done.code, done.out.count("\n")) == (1, 1)
    assert told in done.out


def test_a_projects_file_is_checked_for_what_it_may_not_say(holdfast: Holdfast, tmp_path: Path) -> None:
    (tmp_path / ".holdfast.toml").write_text("model = 'offline'\ndatabase = 'theirs.db'\n", "utf-8")
    done = holdfast("config", "check", "--json")
    assert [(each["line"], each["place"]) for each in done.data["mistakes"]] == [(2, "database")]


def test_a_model_is_looked_for_among_the_providers_that_are_named_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("model = 'lab/x'\n[compaction]\nmodel = 'lap/x'\n[providers.lab]\nkind = 'openai'\n", "utf-8")
    assert [(each.line, each.place) for each in config_check.check_file(str(path))] == [(3, "compaction.model")]
    path.write_text("model = 'nobody/x'\n", "utf-8")
    assert [each.place for each in config_check.check_file(str(path), project=True)] == ["model"]


def test_without_mistakes_it_says_so(holdfast: Holdfast, home: Path) -> None:
    assert holdfast("config", "check") == (0, "No mistakes found.\n", "")
    (home / "config.toml").write_text(
        "model = 'ollama/x'\nfallback = ['holdfast/offline']\n[profiles.work]\nmodel = 'offline'\n", "utf-8"
    )
    assert holdfast("config", "check").code == 0
    assert holdfast("config", "check", "--json").data == {"files": [str(home / "config.toml")], "mistakes": []}


def test_each_provider_that_could_be_meant_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("model = 'x'\n[providers.openai]\nwindow = 9\n[providers.lab]\n", "utf-8")
    (wrong,) = config_check.check_file(str(tmp_path / "config.toml"))
    names = wrong.what.partition("(")[2].partition(")")[0].split(", ")
    assert (names.count("openai"), names.count("lab")) == (1, 1)


@pytest.mark.parametrize("text", [line for line in WRONG.split("\n\n") if "nobody" not in line])
def test_what_is_refused_is_a_mistake_and_the_other_way_round(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_text(text, "utf-8")
    assert config_check.check_file(str(tmp_path / "config.toml"))
    with pytest.raises(errors.SettingInvalid):
        config.load({"HOLDFAST_HOME": str(tmp_path)}, str(tmp_path))


MENDING = {("config", "path"), ("config", "check"), ("config", "edit"), ("completion",), ("tour",), ("doctor",)}


@pytest.mark.parametrize("command", sorted(cli_commands.commands() - MENDING), ids=" ".join)
def test_every_command_refuses_a_wrong_file_alike_and_says_what_finds_all_mistakes(
    home: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (home / "config.toml").write_text(WRONG, "utf-8")
    done = cli_in_process.run(tmp_path, *command)
    assert done.code == 2
    assert done.sentence.startswith(f"holdfast: {home / 'config.toml'}: ")
    assert done.sentence.endswith(" Run `holdfast config check` to list all mistakes.")
    assert list(home.iterdir()) == [home / "config.toml"]


def test_the_help_names_where_the_options_of_the_chat_are(tmp_path: Path) -> None:
    assert "holdfast chat --help" in cli_in_process.run(tmp_path, "--help").out


def test_what_mends_a_wrong_file_or_needs_none_works(tmp_path: Path, home: Path) -> None:
    (home / "config.toml").write_text(WRONG, "utf-8")
    for works in (["config", "path"], ["completion", "bash"], ["--help"], ["tour", "--help"], ["config", "show", "-h"]):
        assert cli_in_process.run(tmp_path, *works).code == 0, works
    assert cli_in_process.run(tmp_path, "config", "check").code == 1


# --- where values come from ----------------------------------------------------------------------------


def test_each_value_is_shown_with_where_it_comes_from(holdfast: Holdfast, home: Path, tmp_path: Path) -> None:
    mine, theirs = home / "config.toml", tmp_path / ".holdfast.toml"
    mine.write_text(
        "model = 'offline'\nfallback = ['offline']\n[limits]\nsteps = 7\ncost = 1.0\n"
        "[permissions]\ndeny = ['shell(a)']\n"
        "[profiles.work]\nlimits = { steps = 3 }\npermissions = { deny = ['shell(b)'] }\n[profiles.play]\n",
        "utf-8",
    )
    theirs.write_text("fallback = []", "utf-8")
    done = holdfast("config", "show", "--json", "--profile", "work", HOLDFAST_DB="else.db", HOLDFAST_MODEL="lab/x")
    assert (done.code, done.err) == (0, "")
    shown = {key: (each["value"], each["source"]) for key, each in done.data["settings"].items()}
    assert shown["home"] == (str(home), "HOLDFAST_HOME")
    assert shown["profile"] == ("work", "--profile")
    assert shown["database"] == ("else.db", "HOLDFAST_DB")
    assert shown["model"] == ("lab/x", "HOLDFAST_MODEL")
    assert shown["fallback"] == ([], str(theirs))
    assert shown["limits.steps"] == (3, "profile work")
    assert shown["limits.cost"] == (1.0, str(mine))
    assert shown["permissions.deny"] == (["shell(a)", "shell(b)"], f"profile work and {mine}")
    assert shown["compaction.soft"] == (0.65, "default")
    assert shown["profiles.work"][0] == "chosen"
    assert shown["profiles.play"][0] == "not chosen"
    lines = holdfast("config", "show").out.splitlines()
    assert len(lines) == len(shown)
    assert any(line.split() == ["limits.steps", str(mine), "7"] for line in lines)


def test_an_empty_variable_sets_nothing_and_an_address_is_traced_to_its_variable(
    holdfast: Holdfast, home: Path
) -> None:
    (home / "config.toml").write_text(
        '[models."lab/a.b"]\nwindow = 9\n[providers.openai]\nbase_url = "http://mine/v1"\nwindow = 8\n', "utf-8"
    )
    shown = holdfast("config", "show", "--json", HOLDFAST_DB="", OPENAI_BASE_URL="http://x/v1").data["settings"]
    assert shown["database"] == {"value": str(home / "holdfast.db"), "source": "default"}
    assert shown["providers.openai.base_url"] == {"value": "http://x/v1", "source": "OPENAI_BASE_URL"}
    assert shown["providers.openai.window"] == {"value": 8, "source": str(home / "config.toml")}
    assert shown["providers.openai.key_env"] == {"value": "OPENAI_API_KEY", "source": "default"}
    assert shown["providers.anthropic.base_url"]["source"] == "default"
    assert shown["providers.ollama.key_env"] == {"value": None, "source": "default"}
    mine = holdfast("config", "show", "--json").data["settings"]["providers.openai.base_url"]
    assert mine == {"value": "http://mine/v1", "source": str(home / "config.toml")}
    assert shown['models."lab/a.b".window'] == {"value": 9, "source": str(home / "config.toml")}


def test_secrets_are_never_shown(holdfast: Holdfast, home: Path) -> None:
    hidden = ["hidden1", "hidden2", "hidden3", "hidden4", "hidden5", "hidden6"]
    (home / "config.toml").write_text(
        '[mcpServers.a]\ncommand = "x"\n'
        'args = ["--token", "hidden1", "--api-key=hidden2", "plain", "--key", "${KEY}"]\n'
        '[mcpServers.a.env]\nA = "hidden3"\nB = "${SHOWN}"\n[mcpServers.b]\nurl = "https://x/"\n'
        '[mcpServers.b.headers]\nAuthorization = "Bearer hidden4"\n'
        '[providers.lab]\nbase_url = "http://me:hidden5@lab/v1"\nkey_env = "LAB"\n',
        "utf-8",
    )
    for form in ([], ["--json"]):
        done = holdfast("config", "show", *form, LAB="hidden6", COLUMNS="9999")
        assert done.code == 0
        assert [each for each in hidden if each in done.out] == []
        for shown in ("${SHOWN}", "${KEY}", "plain", "keys.lab"):
            assert shown in done.out


def test_the_place_of_the_file_is_said_though_it_is_not_there(holdfast: Holdfast, home: Path, tmp_path: Path) -> None:
    done = holdfast("config", "path")
    assert (done.code, done.out) == (0, f"{home / 'config.toml'}\n")
    assert "config edit" in done.err
    (tmp_path / ".holdfast.toml").touch()
    expected = {"user": str(home / "config.toml"), "exists": False, "project": str(tmp_path / ".holdfast.toml")}
    assert holdfast("config", "path", "--json").data == expected


# --- profiles ------------------------------------------------------------------------------------------


def test_a_profile_is_put_over_the_rest_by_flag_or_variable(holdfast: Holdfast, home: Path) -> None:
    (home / "config.toml").write_text(
        "model = 'nobody/x'\n[profiles.work]\nmodel = 'offline'\ndatabase = 'work.db'\n", "utf-8"
    )
    assert "nobody" in holdfast("-p", "hello").sentence
    assert holdfast("-p", "hello", "--profile", "work").code == 0
    assert holdfast("-c", "-p", "hello", HOLDFAST_PROFILE="work").code == 0
    assert "4" in holdfast("sessions", "list", HOLDFAST_PROFILE="work").out
    assert (home / "work.db").exists()
    assert not (home / "holdfast.db").exists()


def test_a_profile_counts_more_than_a_projects_file_and_less_than_the_environment(home: Path, tmp_path: Path) -> None:
    (home / "config.toml").write_text("[profiles.work]\nmodel = 'of/profile'\n", "utf-8")
    (tmp_path / ".holdfast.toml").write_text("model = 'of/project'", "utf-8")
    environ = {"HOLDFAST_HOME": str(home), "HOLDFAST_PROFILE": "work"}
    assert config.load(environ, str(tmp_path)).model == "of/profile"
    assert config.load({**environ, "HOLDFAST_MODEL": "of/me"}, str(tmp_path)).model == "of/me"
    assert config.load({**environ, "HOLDFAST_PROFILE": ""}, str(tmp_path)).model == "of/project"


def test_a_profile_takes_back_no_permission_rule(home: Path) -> None:
    (home / "config.toml").write_text(
        "[permissions]\ndeny = ['shell(a)']\nask = ['shell(b)']\n"
        "[profiles.work.permissions]\ndeny = []\nallow = ['shell(c)']\n",
        "utf-8",
    )
    rules = config.load({"HOLDFAST_HOME": str(home)}, str(home), profile="work").permissions
    assert [rule.effect for rule in rules] == ["deny", "ask", "allow"]


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_an_unknown_profile_is_refused_with_those_there_are(holdfast: Holdfast, home: Path, by: str) -> None:
    (home / "config.toml").write_text("[profiles.work]\n[profiles.play]\n", "utf-8")
    done = holdfast("-p", "x", "--profile", "wrok") if by == "flag" else holdfast("-p", "x", HOLDFAST_PROFILE="wrok")
    assert done.code == 2
    assert "'wrok'" in done.sentence
    assert "work, play" in done.sentence
    assert holdfast("config", "check", HOLDFAST_PROFILE="wrok").code == 1


# --- editing -------------------------------------------------------------------------------------------


@pytest.fixture
def editor(tmp_path: Path) -> Callable[[str], str]:
    """An editor that does this to the file it is given, as `file`."""

    def made(code: str) -> str:
        script = tmp_path / "an editor.py"
        script.write_text(f"import sys, pathlib\nfile = pathlib.Path(sys.argv[-1])\n{code}\n", "utf-8")
        return f"'{sys.executable}' '{script}' --wait"

    return made


def test_what_was_edited_takes_the_place_of_the_file(
    holdfast: Holdfast, home: Path, editor: Callable[[str], str]
) -> None:
    mine = home / "config.toml"
    mine.write_text("# mine\n", "utf-8")
    mine.chmod(0o640)
    write = editor("file.write_text(file.read_text() + 'model = \"offline\"\\n')")
    done = holdfast("config", "edit", EDITOR="false", VISUAL=write)
    assert (done.code, done.out) == (0, "")
    assert mine.read_text() == '# mine\nmodel = "offline"\n'
    assert stat.S_IMODE(mine.stat().st_mode) == 0o640
    assert os.listdir(home) == ["config.toml"]


def test_a_first_file_begins_with_hints_and_is_the_persons_alone(
    holdfast: Holdfast, home: Path, editor: Callable[[str], str]
) -> None:
    looks = "assert '# model' in file.read_text() and file.stat().st_mode & 0o77 == 0"
    write = editor(f"{looks}; file.write_text('model = \"offline\"')")
    assert holdfast("config", "edit", EDITOR=write).code == 0
    assert stat.S_IMODE((home / "config.toml").stat().st_mode) == 0o600
    assert holdfast("config", "check").code == 0


def test_without_a_named_editor_one_that_is_there_is_opened_and_the_folder_is_the_persons_alone(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    usual = tmp_path / "nano"
    usual.write_text("#!/bin/sh\necho 'fallback = []' > \"$1\"\n")
    usual.chmod(0o755)
    mine = tmp_path / "new" / "config.toml"
    assert holdfast("config", "edit", PATH=str(tmp_path), HOLDFAST_HOME=str(mine.parent)).code == 0
    assert mine.read_text() == "fallback = []\n"
    assert stat.S_IMODE(mine.parent.stat().st_mode) == 0o700
    usual.unlink()
    assert "No editor was found. Set EDITOR" in holdfast("config", "edit", PATH=str(tmp_path)).sentence


def test_a_link_stays_a_link(holdfast: Holdfast, home: Path, tmp_path: Path, editor: Callable[[str], str]) -> None:
    (tmp_path / "dotfiles.toml").touch()
    (home / "config.toml").symlink_to(tmp_path / "dotfiles.toml")
    assert holdfast("config", "edit", EDITOR=editor("file.write_text('fallback = []')")).code == 0
    assert (home / "config.toml").is_symlink()
    assert (tmp_path / "dotfiles.toml").read_text() == "fallback = []"


def test_a_file_with_a_mistake_is_not_put_back_and_not_lost(
    holdfast: Holdfast, home: Path, tmp_path: Path, editor: Callable[[str], str]
) -> None:
    (home / "config.toml").write_text("# mine", "utf-8")
    done = holdfast("config", "edit", EDITOR=editor("file.write_text('modell = 1\\n')"))
    assert done.code == 1
    assert "`modell`: unknown setting." in done.err
    assert (home / "config.toml").read_text() == "# mine"
    kept = home / "config.draft.toml"
    assert str(kept) in done.err
    assert kept.read_text() == "modell = 1\n"
    assert (
        holdfast("config", "edit", EDITOR=editor("file.write_text(file.read_text()[:4] + 'l = \"offline\"')")).code == 0
    )
    assert (home / "config.toml").read_text() == 'model = "offline"'


def test_draft_of_an_earlier_file_is_renamed_and_never_overwritten(
    holdfast: Holdfast, home: Path, editor: Callable[[str], str]
) -> None:
    mine = home / "config.toml"
    mine.write_text("# first\n", "utf-8")
    for _ in range(2):
        assert holdfast("config", "edit", EDITOR=editor("file.write_text('modell = 1\\n')")).code == 1
        mine.write_text(mine.read_text() + "# changed\n", "utf-8")
        os.utime(mine, (1, 1))  # The order of the times does not matter.
    done = holdfast("config", "edit", EDITOR=editor("file.write_text(file.read_text() + 'model = \"offline\"')"))
    assert done.code == 0
    assert mine.read_text() == '# first\n# changed\n# changed\nmodel = "offline"'
    kept = sorted(home.glob("config.draft-*.toml"))
    assert [each.read_text() for each in kept] == ["modell = 1\n"] * 2
    assert any(str(each) in done.err for each in kept)


def test_edit_of_a_read_only_file_keeps_its_mode_and_content(
    holdfast: Holdfast, home: Path, editor: Callable[[str], str]
) -> None:
    mine = home / "config.toml"
    mine.write_text("# mine\n", "utf-8")
    mine.chmod(0o444)
    code = "assert file.stat().st_mode & 0o777 == 0o600; file.write_text(file.read_text() + '# more\\n')"
    assert holdfast("config", "edit", EDITOR=editor(code)).code == 0
    assert mine.read_text() == "# mine\n# more\n"
    assert stat.S_IMODE(mine.stat().st_mode) == 0o444


@pytest.mark.parametrize(
    ("code", "exit_code", "told"),
    [
        ("", 0, "Nothing was changed."),
        ("sys.exit(3)", 1, "config.toml was not changed."),
        ("file.unlink()", 0, "Nothing was changed."),
    ],
)
def test_an_editor_that_leaves_without_a_change_changes_nothing(
    holdfast: Holdfast, home: Path, tmp_path: Path, editor: Callable[[str], str], code: str, exit_code: int, told: str
) -> None:
    done = holdfast("config", "edit", EDITOR=editor(code))
    assert done.code == exit_code
    assert told in done.sentence
    assert not (home / "config.toml").exists()
    assert list(home.glob("config*")) == []


def test_a_change_of_somebody_else_is_not_written_over(
    holdfast: Holdfast, home: Path, editor: Callable[[str], str]
) -> None:
    mine = home / "config.toml"
    mine.write_text("# mine", "utf-8")
    code = f"file.write_text('# edited'); pathlib.Path({str(mine)!r}).write_text('# theirs')"
    done = holdfast("config", "edit", EDITOR=editor(code))
    assert done.code == 1
    assert "Another process" in done.sentence
    assert mine.read_text() == "# theirs"
    # The next edit begins with the other process's content.
    assert holdfast("config", "edit", EDITOR=editor("file.write_text(file.read_text() + ' and mine')")).code == 0
    assert mine.read_text() == "# theirs and mine"
    assert [each.read_text() for each in home.glob("config.draft-*.toml")] == ["# edited"]


def test_no_shell_reads_the_name_of_an_editor(holdfast: Holdfast, home: Path, tmp_path: Path) -> None:
    done = holdfast("config", "edit", EDITOR="no-such-editor")
    assert (done.code, done.sentence) == (
        1,
        f"The editor no-such-editor failed. {home / 'config.toml'} was not changed.",
    )
    for name in ("true; touch made", "$(touch made)", "`touch made`", "no-such-editor", "'"):
        assert holdfast("config", "edit", EDITOR=name, VISUAL="").code == 1 or name.startswith("true")
    assert not (tmp_path / "made").exists()
    assert not (home / "config.toml").exists()
