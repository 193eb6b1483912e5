"""Settings: a flag over the environment, over the chosen profile, the project's file, the user's file.

No other file reads the environment or TOML. A project's file comes with whatever was cloned, so it may only
set what cannot hurt: it says nothing about where data, keys or programs are.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import platformdirs

from holdfast import errors, file_modes
from holdfast.gateway import settings as gateway
from holdfast.tools.mcp import settings as mcp
from holdfast.tools.permissions import rules

USER_FILE = "config.toml"
PROJECT_FILE = ".holdfast.toml"
# What a project's file may set.
OF_PROJECT = frozenset({"model", "fallback"})
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}

Count = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Dollars = Annotated[float, msgspec.Meta(ge=0, lt=1e6)]
Hours = Annotated[float, msgspec.Meta(gt=0, lt=1e6)]
Days = Annotated[float, msgspec.Meta(ge=0, lt=1e6)]


class Backup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Backups on a schedule, made by whichever process runs when one is due."""

    folder: str | None = None
    """Where they go; none are made without it."""
    every_hours: Hours = 24.0
    """How old the newest may be."""
    keep: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 7
    """How many stay."""


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `holdfast sessions prune` takes when nothing is said; nothing goes by itself."""

    older_than_days: Days | None = None
    """Conversations unused for so long."""
    max_size: str | None = None
    """The longest unused ones, until the text of the rest fits: 500MB, 2GB."""
    archive: str | None = None
    """The folder archives go to; without it, `archive` beside the store."""


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """US dollars for a million tokens."""

    input: Dollars
    output: Dollars
    cache_read: Dollars | None = None
    cache_write: Dollars | None = None


class Provider(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where models are to be had: `provider/model` names one of them."""

    kind: Literal["openai", "anthropic"] = "openai"
    """Which of the two ways of asking it understands."""
    base_url: str | None = None
    """Its address; without one, that of the company of this kind."""
    key_env: str | None = None
    """The variable that has its key; empty where it needs none. A key itself never stands in a file."""
    window: Count | None = None
    """How many tokens its models take, where that is not known."""


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be known of one model."""

    window: Count | None = None
    """How many tokens a request and its reply may have together."""
    max_output: Count | None = None
    """The longest reply."""
    price: Price | None = None
    """What it costs; without it, what the provider reports, else the list price that Holdfast knows, if it does."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a turn ends even though the model would go on."""

    steps: Count = 50
    """How often the model is asked in one turn."""
    cost: Dollars | None = None
    """US dollars one turn may cost: its replies, its summaries and its memory review. Needs a known price."""


class Compaction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a conversation is compacted, and by which model."""

    soft: Share = 0.65
    """From this share of the usable window on, a compaction is made beside the turns."""
    hard: Share = 0.90
    """From this share on, a turn makes room before it asks."""
    model: str | None = None
    """The model that writes summaries, as provider/model; without one, the model of the conversation."""


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is remembered about the person, across conversations."""

    enabled: bool = True
    """Whether agents know it and can change it. `/memory` shows it either way."""
    review: bool = True
    """Whether the model looks over each turn for more, beside the next one."""


class Plugins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tools of other packages that are installed beside Holdfast."""

    disabled: list[str] = []
    """The packages whose tools are not loaded."""


class Permissions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What tools may do: `tool`, `tool(words)` or `tool(path)`. A project's file has no say in it."""

    allow: list[str] = []
    """Done without asking, unless it is dangerous."""
    ask: list[str] = []
    """Asked for each time, though it is allowed otherwise."""
    deny: list[str] = []
    """Never done, whoever allows it."""

    def rules(self) -> tuple[rules.Rule, ...]:
        """All of them. Raises SettingInvalid with the place of one that cannot be read."""
        said: tuple[tuple[rules.Say, list[str]], ...] = (
            ("deny", self.deny),
            ("ask", self.ask),
            ("allow", self.allow),
        )
        return tuple(rules.rule(say, text, f"`permissions.{say}`: ") for say, texts in said for text in texts)


class Shell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The commands that agents run."""

    environment: list[str] = []
    """Variables that commands are given though they are named like secrets."""


class Secret(str):
    """A key: it is not shown where settings are."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings under a name, put over the others where it is chosen. Permissions add up; the rest replaces."""

    database: str | None = None
    model: str | None = None
    fallback: list[str] = []
    limits: Limits = Limits()
    compaction: Compaction = Compaction()
    memory: Memory = Memory()
    permissions: Permissions = Permissions()
    shell: Shell = Shell()


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a settings file may say."""

    database: str | None = None
    model: str | None = None
    fallback: list[str] = []
    providers: dict[str, Provider] = {}
    models: dict[str, Known] = {}
    limits: Limits = Limits()
    compaction: Compaction = Compaction()
    memory: Memory = Memory()
    plugins: Plugins = Plugins()
    permissions: Permissions = Permissions()
    shell: Shell = Shell()
    servers: dict[str, mcp.Server] = msgspec.field(default_factory=dict, name="mcpServers")
    backup: Backup = Backup()
    retention: Retention = Retention()
    gateway: gateway.Settings = gateway.Settings()
    profiles: dict[str, Profile] = {}


class Layer(NamedTuple):
    """One place that settings come from, and what it says, not looked at yet."""

    name: str
    said: dict[str, Any]


class Read(NamedTuple):
    """What the files say together."""

    file: File
    layers: tuple[Layer, ...] = ()
    """Those that count most come first."""
    files: tuple[str, ...] = ()


# Those that need no file: a key in the environment is enough.
PROVIDERS = {
    "anthropic": Provider("anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    "openai": Provider("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openrouter": Provider("openai", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
}
# The variables that give another address, as the companies' own programs have them.
ADDRESSES = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}


class Settings(msgspec.Struct, frozen=True):
    """What the program runs by; a variable that is set but empty counts as not set."""

    home: str
    """Where Holdfast keeps its data: HOLDFAST_HOME, else the place the system has for data of programs."""
    database: str
    """The store: HOLDFAST_DB, else `database` of the user's file, else holdfast.db in the home."""
    colour: bool
    """Whether a terminal may be coloured: not with NO_COLOR, nor on a terminal that calls itself dumb."""
    columns: int | None
    """The width COLUMNS asks for; None leaves it to the terminal."""
    files: tuple[str, ...] = ()
    """The files these settings were read from."""
    user_file: str = ""
    """Where the user's settings are, or would be."""
    profile: str | None = None
    """The profile that was chosen: HOLDFAST_PROFILE."""
    backup: Backup = Backup()
    retention: Retention = Retention()
    gateway: gateway.Settings = gateway.Settings()
    """Chats and programs that talk to the agent from outside."""
    secrets: dict[str, Secret] = {}
    """What is in the variables that the gateway's settings name, by variable; one that is not set is not here."""
    model: str | None = None
    """The model to ask, as provider/model: HOLDFAST_MODEL, else the project's file, else the user's."""
    fallback: tuple[str, ...] = ()
    """Those to ask when it cannot answer, in this order."""
    providers: dict[str, Provider] = {}
    """By name, with the addresses the environment gives (OPENAI_BASE_URL, ANTHROPIC_BASE_URL)."""
    keys: dict[str, Secret] = {}
    """The key of each provider that has one."""
    models: dict[str, Known] = {}
    limits: Limits = Limits()
    compaction: Compaction = Compaction()
    memory: Memory = Memory()
    plugins: Plugins = Plugins()
    shell: Shell = Shell()
    permissions: tuple[rules.Rule, ...] = ()
    """What tools may do, besides what people answer."""
    servers: tuple[mcp.Wanted, ...] = ()
    """The servers of tools that are not turned off (`mcpServers`), with variables of the environment put in."""
    log: str | None = None
    """The file that warnings and faults are appended to: HOLDFAST_LOG. Without it, nothing is logged."""


def load(
    environ: Mapping[str, str] | None = None,
    folder: str | None = None,
    *,
    profile: str | None = None,
    files: bool = True,
) -> Settings:
    """The settings of this process, or those a given environment and working folder would make.

    `profile` is what a flag chose; without `files`, only the environment counts. Raises SettingInvalid for a file
    that cannot be read or says what it may not, and for a profile nobody knows.
    """
    given = os.environ if environ is None else environ
    home, users = _home(given), os.path.dirname(user_file(given))
    chosen = (profile or given.get("HOLDFAST_PROFILE") or None) if files else None
    said, _, found = read(user_file(given), project_file(folder), chosen) if files else Read(File())
    return Settings(
        home=home,
        database=given.get("HOLDFAST_DB") or _store(said.database, users) or os.path.join(home, "holdfast.db"),
        colour=not given.get("NO_COLOR") and given.get("TERM") != "dumb",
        columns=_columns(given.get("COLUMNS", "")),
        files=found,
        user_file=user_file(given),
        profile=chosen,
        backup=msgspec.structs.replace(said.backup, folder=_path(said.backup.folder, users)),
        retention=msgspec.structs.replace(said.retention, archive=_path(said.retention.archive, users)),
        gateway=said.gateway.resolve_paths(lambda path: _path(path, users)),
        secrets=_secrets(said.gateway.variables, given),
        model=given.get("HOLDFAST_MODEL") or said.model,
        fallback=tuple(said.fallback),
        providers=(providers := _providers(said, given)),
        keys=_keys(providers, given),
        models=said.models,
        limits=said.limits,
        compaction=said.compaction,
        memory=said.memory,
        plugins=said.plugins,
        shell=said.shell,
        permissions=said.permissions.rules(),
        servers=tuple(
            mcp.wanted(name, server, given, lambda path: _path(path, users))
            for name, server in said.servers.items()
            if server.enabled
        ),
        log=given.get("HOLDFAST_LOG") or None,
    )


def environment() -> Mapping[str, str]:
    """The environment of this process, for those who start others."""
    return os.environ


def _home(given: Mapping[str, str]) -> str:
    home = given.get("HOLDFAST_HOME")
    return os.path.abspath(os.path.expanduser(home)) if home else platformdirs.user_data_dir("holdfast", False)


def user_file(environ: Mapping[str, str] | None = None) -> str:
    """Where the user's settings are, or would be."""
    given = os.environ if environ is None else environ
    own = _home(given) if given.get("HOLDFAST_HOME") else platformdirs.user_config_dir("holdfast", False)
    return os.path.join(own, USER_FILE)


def named_store(environ: Mapping[str, str] | None = None) -> str | None:
    """The store that the user's file names, though the rest of it may be wrong."""
    users = user_file(environ)
    try:
        said = (user_settings(users) or {}).get("database")
    except errors.SettingInvalid:
        return None
    return _path(said, os.path.dirname(users)) if isinstance(said, str) else None


def _providers(said: File, given: Mapping[str, str]) -> dict[str, Provider]:
    found = {**PROVIDERS, **said.providers}
    for name, variable in ADDRESSES.items():
        if url := given.get(variable):
            found[name] = msgspec.structs.replace(found[name], base_url=url)
    return found


def needs_key(name: str, provider: Provider) -> bool:
    """Whether a provider cannot be asked without a key. The API of a known company at another address may need none."""
    known = PROVIDERS.get(name)
    if known is None or provider.key_env != known.key_env:
        return bool(provider.key_env)
    return (provider.base_url or known.base_url or "").rstrip("/") == known.base_url


def _keys(providers: dict[str, Provider], given: Mapping[str, str]) -> dict[str, Secret]:
    named = ((name, given.get(provider.key_env or "")) for name, provider in providers.items())
    return {name: Secret(key.strip()) for name, key in named if key and key.strip()}


def _secrets(named: list[str], given: Mapping[str, str]) -> dict[str, Secret]:
    return {name: Secret(value.strip()) for name in named if (value := given.get(name)) and value.strip()}


def size(text: str) -> int:
    """Bytes, from the way people write them: 800, 500MB, 2 GB."""
    found = re.fullmatch(r"(\d{1,12})\s*([kmg]?)b?", text.strip().lower(), re.ASCII)
    if found is None:
        raise errors.SettingInvalid(f"{errors.shown(text)} is not a size; one looks like 500MB or 2GB.")
    return int(found[1]) * _UNITS[found[2]]


# --- files ---------------------------------------------------------------------------------------------


def read(users: str, projects: str | None, profile: str | None = None) -> Read:
    """What both files and the profile say together. Raises SettingInvalid."""
    mine = user_settings(users)
    theirs = parsed(projects) if projects and os.path.realpath(projects) != os.path.realpath(users) else None
    for key in theirs or ():
        if key not in OF_PROJECT:
            raise errors.SettingInvalid(f"{projects}: a project's file may not set `{key}`. Set it in {users}.")
    said = {**(mine or {}), **(theirs or {})}
    files = tuple(path for path, found in ((users, mine), (projects, theirs)) if path and found is not None)
    layers = [Layer(path or "", found) for path, found in ((projects, theirs), (users, mine)) if found is not None]
    if profile is not None:
        layers.insert(0, Layer(f"profile {profile}", _profile(mine or {}, profile, users)))
        said = _over(said, layers[0].said)
    try:
        return Read(checked(_over_known(said)), tuple(layers), files)
    except errors.SettingInvalid as error:
        raise errors.SettingInvalid(f"{' and '.join(files)}: {error}") from None


def checked(said: dict[str, Any]) -> File:
    """What was said, as values. Raises SettingInvalid with the place of the first mistake."""
    try:
        found = msgspec.convert(with_platforms(said), File)
    except msgspec.ValidationError as error:
        raise errors.SettingInvalid(_place(str(error))) from None
    if found.retention.max_size is not None:
        size(found.retention.max_size)
    found.permissions.rules()
    if (wrong := found.gateway.find_problem()) is not None:
        raise errors.SettingInvalid(f"`{'.'.join(('gateway', *wrong[0]))}`: {wrong[1]}")
    for each in found.profiles.values():
        each.permissions.rules()
    return found


def with_platforms(said: dict[str, Any]) -> dict[str, Any]:
    """Return settings in which the tables of platform plug-ins are in `gateway.platforms`."""
    table = said.get("gateway")
    return {**said, "gateway": gateway.collect_platforms(table)} if isinstance(table, dict) else said


def _profile(mine: dict[str, Any], name: str, users: str) -> dict[str, Any]:
    there = mine.get("profiles")
    names = [key for key, value in there.items() if isinstance(value, dict)] if isinstance(there, dict) else []
    if not isinstance(there, dict) or name not in names:
        has = f"has {', '.join(names)}" if names else "has none"
        raise errors.SettingInvalid(f"There is no profile {errors.shown(name)}. {users} {has}.")
    found: dict[str, Any] = there[name]
    return found


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """A profile over the rest: within a table, setting by setting. What is denied once stays denied."""
    both = {**below, **above}
    for key, value in above.items():
        under = below.get(key)
        if isinstance(under, dict) and isinstance(value, dict):
            both[key] = {**under, **value}
            if key == "permissions":
                both[key] |= {say: under[say] + value[say] for say in value if _lists(under.get(say), value[say])}
    return both


def _over_known(said: dict[str, Any]) -> dict[str, Any]:
    """The same, with what is known of a provider where its table does not say it."""
    named = said.get("providers")
    if not isinstance(named, dict):
        return said
    known = {name: msgspec.to_builtins(provider) for name, provider in PROVIDERS.items()}
    filled = {name: {**known.get(name, {}), **each} if isinstance(each, dict) else each for name, each in named.items()}
    return {**said, "providers": filled}


def _lists(*values: object) -> bool:
    return all(isinstance(value, list) for value in values)


def user_settings(path: str) -> dict[str, Any] | None:
    """The user's file of settings. It can start programs and permit commands, so only its user may be able to write it.

    Raises SettingInvalid.
    """
    refuse_writable_by_others(path)
    return parsed(path)


def refuse_writable_by_others(path: str) -> None:
    """Raise SettingInvalid if another user could write this file, or replace it in its directory."""
    if os.name != "posix" or not os.path.exists(path):
        return
    real = os.path.realpath(path)
    places = dict.fromkeys((os.path.dirname(path), os.path.dirname(real), real))
    found = {each: os.stat(each) for each in places if not os.statvfs(each).f_flag & os.ST_RDONLY}
    if shared := {each: status for each, status in found.items() if file_modes.is_shared(status)}:
        modes = " and ".join(f"{each} (mode {stat.S_IMODE(status.st_mode):04o})" for each, status in shared.items())
        raise errors.SettingInvalid(
            f"{path} is not used: others may write to {modes}. "
            f"Check what it says, then run `chmod go-w {shlex.join(shared)}`."
        )
    if foreign := {each: status.st_uid for each, status in found.items() if status.st_uid not in (0, os.geteuid())}:
        users = " and ".join(f"{each} belongs to another user (uid {uid})" for each, uid in foreign.items())
        raise errors.SettingInvalid(
            f"{path} is not used: {users}. "
            f"Check what it says, then run `sudo chown {os.geteuid()} {shlex.join(foreign)}`."
        )


def parsed(path: str) -> dict[str, Any] | None:
    """A file of settings; None where there is none. Raises SettingInvalid when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise errors.SettingInvalid(f"{path} cannot be read: {error.strerror or error}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.SettingInvalid(f"{path} is not TOML: {error}.") from None


def _place(said: str) -> str:
    """`Object contains unknown field `x` - at `$.backup`` as a person would say it."""
    what, _, where = said.partition(" - at ")
    section = where.strip("`").removeprefix("$").strip(".")
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", what)
    if unknown:
        return f"there is no setting `{section + '.' if section else ''}{unknown[1]}`."
    return f"`{section}`: {what}." if section else f"{what.rstrip('.')}."


def project_file(folder: str | None) -> str | None:
    """The nearest one, from the working folder upwards."""
    try:
        here = os.path.abspath(folder or os.getcwd())
    except FileNotFoundError:  # The working folder was removed.
        return None
    while True:
        path = os.path.join(here, PROJECT_FILE)
        if os.path.isfile(path):
            return path
        above = os.path.dirname(here)
        if above == here:
            return None
        here = above


def _path(given: str | None, beside: str) -> str | None:
    """A path in a file is meant from where that file is."""
    return os.path.abspath(os.path.join(beside, os.path.expanduser(given))) if given else None


def _store(given: str | None, beside: str) -> str | None:
    """A path likewise; the address of a server as it is."""
    return given if given and "://" in given else _path(given, beside)


def _columns(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 10_000 else None


def from_home(path: str) -> str:
    """The path as people write it, beginning with ~ where it is theirs."""
    home = os.path.expanduser("~").rstrip(os.sep)
    return f"~{path.removeprefix(home)}" if home and path.startswith(home + os.sep) else path
