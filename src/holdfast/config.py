"""Settings. In order of precedence: flags, environment, profile, the project's file, the user's file.

No other module reads the environment or TOML. A project's file may come from an untrusted repository, so it can only
choose the model, and cannot name paths, keys or programs.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import tomllib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import platformdirs

from holdfast import errors, file_modes
from holdfast.gateway import settings as gateway
from holdfast.model import base, providers
from holdfast.tools.mcp import settings as mcp
from holdfast.tools.permissions import rules

USER_FILE = "config.toml"
PROJECT_FILE = ".holdfast.toml"
SECRETS_FILE = "gateway.env"
"""The file with secrets of the gateway, next to the user's file: NAME=value, one per line, as systemd reads it."""
# The settings that a project's file may contain.
PROJECT_KEYS = frozenset({"model", "fallback"})
EFFECTS: tuple[rules.Effect, ...] = ("deny", "ask", "allow")
UNKNOWN_SETTING = "unknown setting."
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}

Count = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Hours = Annotated[float, msgspec.Meta(gt=0, lt=1e6)]
Days = Annotated[float, msgspec.Meta(ge=0, lt=1e6)]


class BackupSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scheduled backups, made by any process that runs when one is due."""

    folder: str | None = None
    """The folder for backups; None disables them."""
    every_hours: Hours = 24.0
    """The interval between backups."""
    keep: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 7
    """The number of backups to keep."""


class RetentionSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The defaults of `holdfast sessions prune`. Nothing is pruned automatically."""

    older_than_days: Days | None = None
    """Prune conversations that were unused for so long."""
    max_size: str | None = None
    """Prune the least recently used ones until the text of the rest fits: 500MB, 2GB."""
    archive: str | None = None
    """The folder for archives; by default `archive` next to the store."""


class ProviderSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A provider of models, which are named `provider/model`."""

    api: Literal["openai", "anthropic"] | None = msgspec.field(default=None, name="kind")
    """The API that it implements; by default OpenAI's."""
    base_url: str | None = None
    """The address of the API; by default that of the company."""
    key_env: str | None = None
    """The variable with the API key; empty if none is needed. Keys are never stored in files."""
    window: Count | None = None
    """The context window of its models in tokens, if it is not known."""


class ModelSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The properties of one model."""

    window: Count | None = None
    """The context window: the tokens of a request and its reply together."""
    max_output: Count | None = None
    """The maximum number of tokens of a reply."""
    price: base.Price | None = None
    """The price; by default the cost that the provider reports, else the list price, if it is known."""


class LimitsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits that end a turn."""

    steps: Count = 50
    """The maximum number of model calls per turn."""
    cost: base.Dollars | None = None
    """The maximum cost of a turn in US dollars, with summaries and memory review. Needs a known price."""


class CompactionSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a conversation is compacted, and by which model."""

    soft: Share = 0.65
    """The share of the usable window at which a compaction starts in the background."""
    hard: Share = 0.90
    """The share at which a turn waits for a compaction."""
    model: str | None = None
    """The model that writes summaries, as provider/model; by default the model of the conversation."""


class MemorySection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory notes about the user, across conversations."""

    enabled: bool = True
    """Whether agents read and write notes. `/memory` shows them in any case."""
    review: bool = True
    """Whether the model reviews each turn in the background for facts to remember."""


class PluginsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tools of other installed packages."""

    disabled: list[str] = []
    """The packages whose tools are not loaded."""


class PermissionsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Permission rules of the form `tool`, `tool(words)` or `tool(path)`. A project's file cannot set them."""

    allow: list[str] = []
    """Allowed without asking, unless the call is dangerous."""
    ask: list[str] = []
    """Asked each time, even if another rule allows the call."""
    deny: list[str] = []
    """Always denied."""

    def rules(self) -> tuple[rules.Rule, ...]:
        """Return all rules. Raises SettingInvalid for an invalid one."""
        return tuple(rules.parse_rule(effect, text) for effect in EFFECTS for text in getattr(self, effect))


class ShellSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of shell commands that agents run."""

    environment: list[str] = []
    """Variables that commands receive although their names look like secrets."""


class Secret(str):
    """A secret, which `repr` does not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class ProfileSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named set of settings that override others when it is chosen. Permission rules are added."""

    database: str | None = None
    model: str | None = None
    fallback: list[str] = []
    limits: LimitsSection = LimitsSection()
    compaction: CompactionSection = CompactionSection()
    memory: MemorySection = MemorySection()
    permissions: PermissionsSection = PermissionsSection()
    shell: ShellSection = ShellSection()


class SettingsFile(ProfileSection, frozen=True, forbid_unknown_fields=True):
    """The content of a settings file."""

    providers: dict[str, ProviderSection] = {}
    models: dict[str, ModelSection] = {}
    plugins: PluginsSection = PluginsSection()
    servers: dict[str, mcp.ServerSettings] = msgspec.field(default_factory=dict, name="mcpServers")
    backup: BackupSection = BackupSection()
    retention: RetentionSection = RetentionSection()
    gateway: gateway.GatewaySettings = gateway.GatewaySettings()
    profiles: dict[str, ProfileSection] = {}


class Layer(NamedTuple):
    """One source of settings, and its values before validation."""

    name: str
    values: dict[str, Any]


class LoadedFiles(NamedTuple):
    """The merged content of the settings files."""

    file: SettingsFile
    layers: tuple[Layer, ...] = ()
    """In order of precedence."""
    files: tuple[str, ...] = ()


class Settings(msgspec.Struct, frozen=True):
    """The settings of a process. An empty variable counts as not set."""

    home: str
    """The data directory: HOLDFAST_HOME, else the user data directory of the system."""
    database: str
    """The store: HOLDFAST_DB, else `database` of the user's file, else holdfast.db in the home."""
    colour: bool
    """Whether output may be coloured: not with NO_COLOR, nor on a dumb terminal."""
    columns: int | None
    """COLUMNS; None for the width of the terminal."""
    files: tuple[str, ...] = ()
    """The files that were read."""
    user_file: str = ""
    """The path of the user's settings file, which may not exist."""
    profile: str | None = None
    """The chosen profile: HOLDFAST_PROFILE."""
    backup: BackupSection = BackupSection()
    retention: RetentionSection = RetentionSection()
    gateway: gateway.GatewaySettings = gateway.GatewaySettings()
    secrets: dict[str, Secret] = {}
    """The values of the variables that the gateway's settings name: of the environment, else of `gateway.env`."""
    model: str | None = None
    """The model, as provider/model: HOLDFAST_MODEL, else the project's file, else the user's."""
    fallback: tuple[str, ...] = ()
    """The models to try in order if it fails."""
    providers: dict[str, providers.Provider] = {}
    """The known ones and those of the files, with the addresses of the environment (OPENAI_BASE_URL …)."""
    keys: dict[str, Secret] = {}
    """The API keys by provider."""
    models: dict[str, ModelSection] = {}
    limits: LimitsSection = LimitsSection()
    compaction: CompactionSection = CompactionSection()
    memory: MemorySection = MemorySection()
    plugins: PluginsSection = PluginsSection()
    shell: ShellSection = ShellSection()
    permissions: tuple[rules.Rule, ...] = ()
    servers: tuple[mcp.ServerConfig, ...] = ()
    """The enabled MCP servers (`mcpServers`), with variables of the environment substituted."""
    log: str | None = None
    """The log file for warnings and errors: HOLDFAST_LOG."""


def load(
    environ: Mapping[str, str] | None = None,
    folder: str | None = None,
    *,
    profile: str | None = None,
    files: bool = True,
) -> Settings:
    """Return the settings of this process, or those of another environment and working directory.

    `profile` overrides HOLDFAST_PROFILE. Without `files`, only the environment is read. Raises SettingInvalid for an
    unreadable or invalid file, and for an unknown profile.
    """
    given = os.environ if environ is None else environ
    home, users = _home(given), os.path.dirname(user_file(given))
    chosen = (profile or given.get("HOLDFAST_PROFILE") or None) if files else None
    file, _, found = read(user_file(given), project_file(folder), chosen) if files else LoadedFiles(SettingsFile())
    return Settings(
        home=home,
        database=given.get("HOLDFAST_DB") or _resolve_store(file.database, users) or os.path.join(home, "holdfast.db"),
        colour=not given.get("NO_COLOR") and given.get("TERM") != "dumb",
        columns=_columns(given.get("COLUMNS", "")),
        files=found,
        user_file=user_file(given),
        profile=chosen,
        backup=msgspec.structs.replace(file.backup, folder=_path(file.backup.folder, users)),
        retention=msgspec.structs.replace(file.retention, archive=_path(file.retention.archive, users)),
        gateway=file.gateway.resolve_paths(lambda path: _path(path, users)),
        secrets=_secrets(file.gateway.variables, given, _read_secrets_file(file, users)),
        model=given.get("HOLDFAST_MODEL") or file.model,
        fallback=tuple(file.fallback),
        providers=(known := _providers(file, given)),
        keys=_keys(known, given),
        models=file.models,
        limits=file.limits,
        compaction=file.compaction,
        memory=file.memory,
        plugins=file.plugins,
        shell=file.shell,
        permissions=file.permissions.rules(),
        servers=tuple(
            mcp.resolve(name, server, given, lambda path: _path(path, users))
            for name, server in file.servers.items()
            if server.enabled
        ),
        log=given.get("HOLDFAST_LOG") or None,
    )


def environment() -> Mapping[str, str]:
    """Return the environment of this process."""
    return os.environ


def _home(given: Mapping[str, str]) -> str:
    home = given.get("HOLDFAST_HOME")
    return os.path.abspath(os.path.expanduser(home)) if home else platformdirs.user_data_dir("holdfast", False)


def user_file(environ: Mapping[str, str] | None = None) -> str:
    """Return the path of the user's settings file, which may not exist."""
    given = os.environ if environ is None else environ
    own = _home(given) if given.get("HOLDFAST_HOME") else platformdirs.user_config_dir("holdfast", False)
    return os.path.join(own, USER_FILE)


def database_in_user_file(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the store that the user's file names, even if the file is otherwise invalid."""
    users = user_file(environ)
    try:
        named = (read_user_file(users) or {}).get("database")
    except errors.SettingInvalid:
        return None
    return _path(named, os.path.dirname(users)) if isinstance(named, str) else None


def _providers(file: SettingsFile, given: Mapping[str, str]) -> dict[str, providers.Provider]:
    found = dict(providers.PROVIDERS)
    for name, section in file.providers.items():
        known = found.get(name) or providers.Provider(
            name, base_url=providers.PROVIDERS[section.api or "openai"].base_url
        )
        changed = {field: value for field, value in msgspec.structs.asdict(section).items() if value is not None}
        found[name] = msgspec.structs.replace(known, **changed)
    for name, provider in found.items():
        if url := given.get(provider.base_url_env):
            found[name] = msgspec.structs.replace(provider, base_url=url)
    return found


def _keys(known: dict[str, providers.Provider], given: Mapping[str, str]) -> dict[str, Secret]:
    secrets = _secrets([provider.key_env for provider in known.values()], given)
    return {name: secrets[provider.key_env] for name, provider in known.items() if provider.key_env in secrets}


def _secrets(named: list[str], *sources: Mapping[str, str]) -> dict[str, Secret]:
    values = ((name, source.get(name, "").strip()) for source in reversed(sources) for name in named)
    return {name: Secret(value) for name, value in values if value}


def _read_secrets_file(file: SettingsFile, folder: str) -> dict[str, str]:
    path = os.path.join(folder, SECRETS_FILE)
    if not file.gateway.variables or not os.path.exists(path):
        return {}
    refuse_writable_by_others(path)
    try:
        with open(path, encoding="utf-8") as opened:
            return dict(parse_variables(opened.read()))
    except (OSError, ValueError) as error:
        raise errors.SettingInvalid(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def parse_variables(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a file of variables. Raises ValueError, which does not contain a value."""
    for number, line in enumerate(text.splitlines(), 1):
        name, sign, value = line.strip().removeprefix("export ").partition("=")
        if not line.strip() or line.lstrip()[0] in "#;":
            continue
        if not sign:
            raise ValueError(f"line {number} is not NAME=value")
        try:
            yield name.strip(), " ".join(shlex.split(value))
        except ValueError:
            raise ValueError(f"line {number} has a quotation mark or backslash without its counterpart") from None


def parse_size(text: str) -> int:
    """Parse a size such as 800, 500MB or 2 GB into bytes."""
    found = re.fullmatch(r"(\d{1,12})\s*([kmg]?)b?", text.strip().lower(), re.ASCII)
    if found is None:
        raise errors.SettingInvalid(f"{errors.quote(text)} is not a size. Use a size such as 500MB or 2GB.")
    return int(found[1]) * _UNITS[found[2]]


# --- files ---------------------------------------------------------------------------------------------


def read(users: str, projects: str | None, profile: str | None = None) -> LoadedFiles:
    """Merge both files and the profile. Raises SettingInvalid."""
    mine = read_user_file(users)
    project = parse_file(projects) if projects and os.path.realpath(projects) != os.path.realpath(users) else None
    for key in project or ():
        if key not in PROJECT_KEYS:
            raise errors.SettingInvalid(f"{projects}: a project's file may not set `{key}`. Set it in {users}.")
    values = {**(mine or {}), **(project or {})}
    files = tuple(path for path, found in ((users, mine), (projects, project)) if path and found is not None)
    layers = [Layer(path or "", found) for path, found in ((projects, project), (users, mine)) if found is not None]
    if profile is not None:
        layers.insert(0, Layer(f"profile {profile}", _profile(mine or {}, profile, users)))
        values = _merge_profile(values, layers[0].values)
    try:
        return LoadedFiles(validate(values), tuple(layers), files)
    except errors.SettingInvalid as error:
        raise errors.SettingInvalid(f"{' and '.join(files)}: {error}") from None


def validate(values: dict[str, Any]) -> SettingsFile:
    """Convert the content of a file. Raises SettingInvalid with the path of the first mistake."""
    try:
        found = msgspec.convert(with_platforms(values), SettingsFile)
    except msgspec.ValidationError as error:
        place, what = parse_error(str(error))
        if what == UNKNOWN_SETTING:
            raise errors.SettingInvalid(f"unknown setting `{'.'.join(place)}`.") from None
        raise errors.SettingInvalid(f"`{'.'.join(place)}`: {what}") from None
    for place, what in find_problems(found):
        raise errors.SettingInvalid(f"`{'.'.join(place)}`: {what}")
    return found


def find_problems(section: ProfileSection) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the paths of values of the right type that are invalid for another reason, and why."""
    for effect in EFFECTS:
        for text in getattr(section.permissions, effect):
            try:
                rules.parse_rule(effect, text)
            except errors.SettingInvalid as error:
                yield ("permissions", effect), str(error)
    if not isinstance(section, SettingsFile):
        return
    if section.retention.max_size is not None:
        try:
            parse_size(section.retention.max_size)
        except errors.SettingInvalid as error:
            yield ("retention", "max_size"), str(error)
    if (wrong := section.gateway.find_problem()) is not None:
        yield ("gateway", *wrong[0]), wrong[1]
    for name, profile in section.profiles.items():
        yield from ((("profiles", name, *place), what) for place, what in find_problems(profile))


def with_platforms(values: dict[str, Any]) -> dict[str, Any]:
    """Return settings in which the tables of platform plug-ins are in `gateway.platforms`."""
    table = values.get("gateway")
    return {**values, "gateway": gateway.collect_platforms(table)} if isinstance(table, dict) else values


def _profile(mine: dict[str, Any], name: str, users: str) -> dict[str, Any]:
    profiles = mine.get("profiles")
    named = profiles if isinstance(profiles, dict) else {}
    names = [key for key, value in named.items() if isinstance(value, dict)]
    if name not in names:
        has = f"has {', '.join(names)}" if names else "has none"
        raise errors.SettingInvalid(f"There is no profile {errors.quote(name)}. {users} {has}.")
    found: dict[str, Any] = named[name]
    return found


def _merge_profile(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Override settings by a profile, within tables setting by setting. Permission rules are added."""
    both = {**below, **above}
    for key, value in above.items():
        under = below.get(key)
        if isinstance(under, dict) and isinstance(value, dict):
            both[key] = {**under, **value}
            for effect in value if key == "permissions" else ():
                if isinstance(under.get(effect), list) and isinstance(value[effect], list):
                    both[key][effect] = under[effect] + value[effect]
    return both


def read_user_file(path: str) -> dict[str, Any] | None:
    """Read the user's file. It can start programs and permit commands, so only its owner may be able to write it.

    Raises SettingInvalid.
    """
    refuse_writable_by_others(path)
    return parse_file(path)


def refuse_writable_by_others(path: str) -> None:
    """Raise SettingInvalid if another user could write this file, or replace it in its directory."""
    if os.name != "posix" or not os.path.exists(path):
        return
    real = os.path.realpath(path)
    for each in dict.fromkeys((os.path.dirname(path), os.path.dirname(real), real)):
        status = os.stat(each)
        if os.statvfs(each).f_flag & os.ST_RDONLY:
            continue
        if file_modes.is_writable_by_others(status):
            problem, remedy = f"other users can write to {each} (mode {stat.S_IMODE(status.st_mode):04o})", "chmod go-w"
        elif status.st_uid not in (0, os.geteuid()):
            problem, remedy = f"{each} belongs to another user (uid {status.st_uid})", f"sudo chown {os.geteuid()}"
        else:
            continue
        raise errors.SettingInvalid(
            f"{path} is not used: {problem}. Check its content, then run `{remedy} {shlex.quote(each)}`."
        )


def parse_file(path: str) -> dict[str, Any] | None:
    """Parse a settings file; returns None if it does not exist. Raises SettingInvalid."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise errors.SettingInvalid(f"{path} cannot be read: {error.strerror or error}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.SettingInvalid(f"{path} is not valid TOML: {error}.") from None


def parse_error(text: str) -> tuple[tuple[str, ...], str]:
    """Split an error of msgspec, such as `Expected `int` - at `$.backup.keep``, into a path and a sentence.

    In the path, `*` is the name of a table that msgspec does not report, as in `providers.*.window`.
    """
    what, _, where = text.partition(" - at ")
    where = re.sub(r"\[\d+\]", "", where.strip("`")).replace("[...]", ".*")
    place = tuple(part for part in where.split(".")[1:] if part)
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        return (*place, unknown[1]), UNKNOWN_SETTING
    return place, f"{what[:1].lower()}{what[1:].rstrip('.')}."


def project_file(folder: str | None) -> str | None:
    """Return the nearest project file, from the working directory upwards."""
    try:
        here = os.path.abspath(folder or os.getcwd())
    except FileNotFoundError:  # The working directory was removed.
        return None
    while not os.path.isfile(path := os.path.join(here, PROJECT_FILE)):
        here, below = os.path.dirname(here), here
        if here == below:
            return None
    return path


def _path(given: str | None, folder: str) -> str | None:
    """Resolve a path relative to the settings file."""
    return os.path.abspath(os.path.join(folder, os.path.expanduser(given))) if given else None


def _resolve_store(given: str | None, folder: str) -> str | None:
    """Resolve a path; the address of a server is unchanged."""
    return given if given and "://" in given else _path(given, folder)


def _columns(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 10_000 else None
