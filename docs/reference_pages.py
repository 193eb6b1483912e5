"""A hook of the documentation site: reference pages that are generated from the code when the site is built.

The pages are not checked in. Tables of settings, HTTP and JSON-RPC come from JSON schemas, which one set of functions
renders; descriptions of settings are the docstrings of their fields.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import click
import griffe
import msgspec
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from holdfast import config, events, model
from holdfast.agent import commands
from holdfast.cli import config_commands, program
from holdfast.gateway import settings as gateway
from holdfast.gateway.platforms.http import openapi
from holdfast.model import providers
from holdfast.store import db

DOCS = Path(__file__).parent
FACETS = ("mail", "contacts", "memory", "permissions", "processes", "blobs", "admin")
METHODS_ONLY = ["!^_", f"!^({'|'.join(FACETS)}|db|driver|lease_failures|searcher)$"]
"""A filter of mkdocstrings against attributes, which only point to other parts of the store."""
TABLE_NAMES = {"models": '"PROVIDER/MODEL"'}
"""The placeholders for names of tables; NAME for all others."""

SETTING_COLUMNS = ("Setting", "Type", "Default", "Variable", "Description")

Schema = Mapping[str, Any]


def on_config(settings: MkDocsConfig) -> None:
    decisions = next(item["Decisions"] for item in settings.nav or () if "Decisions" in item)
    decisions += sorted(f"decisions/{page.name}" for page in DOCS.glob("decisions/[0-9]*.md"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for uri, content in pages().items():
        files.append(File.generated(config, f"reference/{uri}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Link the names in the tables of the Python API to their descriptions."""
    if page.file.src_uri != "reference/python-api.md":
        return markdown
    known = dict(api_links())
    return re.sub(
        r"`([A-Za-z_.]+)`", lambda code: f"[{code[0]}]{known[code[1]]}" if code[1] in known else code[0], markdown
    )


def pages() -> dict[str, str]:
    """Return the text of every generated page."""
    return {
        "cli.md": cli_page(),
        "slash-commands.md": slash_commands_page(),
        "settings.md": settings_page(),
        "http.md": http_page(openapi.document(["PROVIDER/MODEL"], True, gateway.Http().conversation_header)),
        "rpc.md": rpc_page(json.loads((DOCS / "reference/rpc.schema.json").read_text("utf-8"))),
        **python_pages(),
    }


# --- Markdown ------------------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table without the columns in which no row has a value; empty without rows."""
    found = list(rows)
    used = [index for index in range(len(heads)) if any(row[index] for row in found)]
    lines = [[heads[index] for index in used], ["---"] * len(used), *([row[index] for index in used] for row in found)]
    return "\n".join(f"| {' | '.join(_cell(value) for value in line)} |" for line in lines) if found else ""


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def escape(text: str) -> str:
    """Escape plain text outside of code spans, so that Markdown shows it as it is."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([*_<>\[\]])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def code(value: object) -> str:
    return f"`{value}`" if str(value) else ""


def join(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


# --- command line --------------------------------------------------------------------------------------------


def cli_page() -> str:
    intro = (
        "`holdfast` alone opens the [chat](../guides/chat.md). `holdfast COMMAND --help` prints what this page says "
        "about a command. Exit codes: 0, 1 (failure), 2 (usage error or invalid settings), 130 (interrupted)."
    )
    sections = [_command(context) for context in command_tree()]
    return join(["# Command line", intro, *sections])


def command_tree(context: click.Context | None = None) -> Iterator[click.Context]:
    """Yield the context of every command, groups first. Loads all of them."""
    context = context or click.Context(program.program, None, "holdfast", **program.program.context_settings)
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            yield from command_tree(click.Context(command, context, name))


def _command(context: click.Context) -> str:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    options = [record for each in command.get_params(context) if (record := each.get_help_record(context))]
    children = []
    if isinstance(command, click.Group):
        children = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    level = "##" if context.parent is None or context.parent.parent is None else "###"
    listed = [
        (f"[`{name}`](#{context.command_path.replace(' ', '-')}-{name})", escape(child.get_short_help_str(200)))
        for name, child in children
        if child
    ]
    return join(
        [
            f"{level} {context.command_path}",
            _help(command.help or ""),
            f"```text\n{usage}\n```",
            table(("Command", "Description"), listed),
            table(("Option", "Description"), [(code(form), escape(purpose)) for form, purpose in options]),
        ]
    )


def _help(text: str) -> str:
    """Return help text as Markdown: paragraphs after a line with `\\b` keep their lines."""
    paragraphs = re.split(r"\n\n", inspect.cleandoc(text))
    return join(
        f"```text\n{each.removeprefix(chr(8)).strip(chr(10))}\n```" if each.startswith("\b") else escape(each)
        for each in paragraphs
    )


def slash_commands_page() -> str:
    intro = (
        "A line that begins with `/` is a command. `/help` lists the commands of the front end that you use. "
        "A command waits for the running turn to end, unless this page says otherwise."
    )
    return join(["# Slash commands", intro, _places(), *map(_slash_command, commands.COMMANDS.values())])


def _places() -> str:
    names = get_args(events.Place)
    rows = [
        (f"[`/{each.name}`](#{each.name})", escape(each.help), *("✓" if name in each.places else "–" for name in names))
        for each in commands.COMMANDS.values()
    ]
    return table(("Command", "Description", *(PLACES[name] for name in names)), rows)


PLACES = {
    "terminal": "Terminal",
    "once": "`-p`",
    "chat": "Chat platforms",
    "editor": "Editors",
    "web": "Custom clients",
}


def _slash_command(command: commands.SlashCommand) -> str:
    notes = ["Runs during a turn."] if command.during_turn else []
    notes += ["Needs a conversation with at least one message."] if command.needs else []
    notes += [f"With `-p`: {escape(command.instead)}"] if command.instead else []
    return join(
        [
            f"## /{command.name} {{ #{command.name} }}",
            f"```text\n{command.form}\n```",
            escape(command.help),
            f"```text\n{command.more}\n```" if command.more else "",
            " ".join(notes),
        ]
    )


# --- JSON schemas --------------------------------------------------------------------------------------------


def type_of(schema: Schema, links: bool = True) -> str:
    """Return the type of a value in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})" if links else name
    if "const" in schema or "enum" in schema:
        return ", ".join(code(json.dumps(value)) for value in schema.get("enum") or [schema["const"]])
    if "anyOf" in schema:
        return " or ".join(type_of(each, links) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {type_of(schema.get('items', {}), links)}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"table of {type_of(schema['additionalProperties'], links)}"
    kinds = schema.get("type", "any value")
    return " ".join(filter(None, [kinds if isinstance(kinds, str) else " or ".join(kinds), _limits(schema)]))


def _limits(schema: Schema) -> str:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f"{low:,} to {high:,}"
    found = [f"> {above:,}"] if above is not None else []
    found += [f"≥ {low:,}"] if low is not None else []
    found += [f"≤ {high:,}"] if high is not None else []
    found += [f"< {below:,.0f}"] if below is not None else []
    return ", ".join(found)


def properties(schema: Schema) -> str:
    """Return a table of the properties of an object."""
    required = schema.get("required", ())
    rows = [
        (code(name), type_of(each), "yes" if name in required else "", _default(each), each.get("description", ""))
        for name, each in schema.get("properties", {}).items()
    ]
    return table(("Field", "Type", "Required", "Default", "Description"), rows)


def _default(schema: Schema) -> str:
    value = schema.get("default")
    return code(json.dumps(value, ensure_ascii=False)) if value not in (None, {}, []) else ""


def _schemas(schemas: Mapping[str, Schema]) -> list[str]:
    return [join([f"### {name}", each.get("description", ""), properties(each)]) for name, each in schemas.items()]


# --- settings ------------------------------------------------------------------------------------------------


def settings_page() -> str:
    intro = (
        "Settings are in `config.toml`; `holdfast config path` prints where, `holdfast config show` prints every value "
        "and its source, and `holdfast config check` lists mistakes. In order of precedence: options, environment, "
        "profile, the project's `.holdfast.toml` (only "
        f"{' and '.join(code(key) for key in sorted(config.PROJECT_KEYS, reverse=True))}), your file. "
        "[Settings](../guides/settings.md) has examples."
    )
    return join(["# Settings", intro, *_settings_sections(config.SettingsFile, ()), _variables()])


def _settings_sections(kind: type, path: tuple[str, ...]) -> Iterator[str]:
    """Yield a section for a table of settings, then one for each table in it."""
    (_,), definitions = msgspec.json.schema_components([kind])
    schema = definitions[kind.__name__]
    inner = dict(_inner_tables(kind))
    rows = []
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        if name not in inner:
            each = schema["properties"][name]
            variable = config_commands.VARIABLES.get(name, "") if not path else ""
            kinds = type_of(_without_null(each), False)
            rows.append((code(name), kinds, _default(each), code(variable), escape(field_doc(kind, field.name))))
    heading = f"## `[{'.'.join(path)}]` {{ #{_anchor(path)} }}" if path else "## Top level"
    purpose = (kind.__doc__ or "") if path else ""
    yield join([heading, _paragraphs(purpose), table(SETTING_COLUMNS, rows)])
    for name, (inside, is_named) in inner.items():
        below = (*path, name, *([TABLE_NAMES.get(name, "NAME")] if is_named else []))
        if inside is config.ProfileSection:
            yield _profile_section(below)
        else:
            yield from _settings_sections(inside, below)


def _profile_section(path: tuple[str, ...]) -> str:
    allowed = [
        f"[`{name}`](#{_anchor((name,)) if name in dict(_inner_tables(config.ProfileSection)) else 'top-level'})"
        for name in config.ProfileSection.__struct_fields__
    ]
    heading = f"## `[{'.'.join(path)}]` {{ #{_anchor(path)} }}"
    return join([heading, config.ProfileSection.__doc__ or "", f"A profile can set {', '.join(allowed)}."])


def _inner_tables(kind: type) -> Iterator[tuple[str, tuple[type, bool]]]:
    """Yield the fields that are tables: their name, the type, and whether it is a table of named tables."""
    for field in msgspec.inspect.type_info(kind).fields:
        each = field.type
        options = each.types if isinstance(each, msgspec.inspect.UnionType) else (each,)
        for option in options:
            if isinstance(option, msgspec.inspect.StructType):
                yield field.encode_name, (option.cls, False)
            elif isinstance(inner := getattr(option, "value_type", None), msgspec.inspect.StructType):
                yield field.encode_name, (inner.cls, True)


def _anchor(path: Sequence[str]) -> str:
    return re.sub(r"[^\w-]", "", "-".join(path)).lower()


def _without_null(schema: Schema) -> Schema:
    options = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    return options[0] if len(options) == 1 else {**schema, "anyOf": options} if options else schema


def field_doc(kind: type, name: str) -> str:
    """Return the docstring of a field, or of the setting of the same name in the loaded settings."""
    for owner in (*kind.__mro__, config.Settings):
        if owner.__module__.startswith("holdfast."):
            member = _source(owner.__module__).members[owner.__name__].members.get(name)
            if member is not None and member.docstring is not None:
                return " ".join(member.docstring.value.split())
    return ""


@functools.cache
def _source(module: str) -> griffe.Module:
    path = Path(str(sys.modules[module].__file__))
    return griffe.visit(module, path, path.read_text("utf-8"))


def _paragraphs(docstring: str) -> str:
    return "\n".join(line.strip() for line in docstring.strip().splitlines())


def _variables() -> str:
    rows = []
    for field in config.Settings.__struct_fields__:
        purpose = field_doc(config.Settings, field)
        rows += [
            (code(name), escape(purpose)) for name in re.findall(r"\b(?:HOLDFAST_[A-Z]+|NO_COLOR|COLUMNS)\b", purpose)
        ]
    known = [
        (code(each.name), code(each.base_url), code(each.key_env), code(each.base_url_env))
        for each in providers.PROVIDERS.values()
    ]
    return join(
        [
            "## Environment variables",
            "An empty variable counts as not set.",
            table(("Variable", "Meaning"), rows),
            "## Providers",
            "A model is named `PROVIDER/MODEL`. Keys are only read from the environment.",
            table(("Provider", "Address", "Variable of the key", "Variable of the address"), known),
        ]
    )


# --- HTTP and JSON-RPC ---------------------------------------------------------------------------------------


def http_page(document: Schema) -> str:
    intro = (
        "The [gateway](../guides/gateway.md) serves this API at `http://127.0.0.1:8642` unless settings say otherwise. "
        "`GET /openapi.json` returns the same as an OpenAPI document. If the server has tokens, requests need the "
        "header `Authorization: Bearer TOKEN`."
    )
    operations = [
        _operation(method, path, each)
        for path, methods in document["paths"].items()
        for method, each in methods.items()
    ]
    return join(["# HTTP API", intro, *operations, "## Schemas", *_schemas(document["components"]["schemas"])])


def _operation(method: str, path: str, operation: Schema) -> str:
    parameters = [
        (code(each["name"]), each["in"], type_of(each["schema"]), "yes" if each.get("required") else "")
        for each in operation["parameters"]
    ]
    body = operation.get("requestBody", {}).get("content", {})
    responses = [
        (code(status), _content(each["content"]), each["description"])
        for status, each in operation["responses"].items()
    ]
    return join(
        [
            f"## {method.upper()} {path} {{ #{_anchor((method, *re.findall(r'[a-z]+', path)))} }}",
            operation["summary"],
            f"Request body: {_content(body)}." if body else "",
            table(("Parameter", "In", "Type", "Required"), parameters),
            table(("Status", "Response", "Description"), responses),
        ]
    )


def _content(content: Mapping[str, Schema]) -> str:
    return "; ".join(f"{type_of(each['schema'])} (`{kind}`)" for kind, each in content.items())


def rpc_page(document: Schema) -> str:
    intro = (
        "`holdfast rpc` serves these methods; [Custom clients](../guides/custom-clients.md) explains transports and "
        "limits. The server sends the notification `event` with `type`, `session_id` and `payload`. Results and events "
        "may get more fields: ignore unknown ones. Programs read the same as an [OpenRPC document](rpc.schema.json)."
    )
    failures = [(code(each["code"]), name, each["message"]) for name, each in document["components"]["errors"].items()]
    payloads = [(code(name), type_of(each["payload"])) for name, each in document["x-events"].items()]
    notifications = [
        (code(name), each["from"], type_of(each["params"])) for name, each in document["x-notifications"].items()
    ]
    return join(
        [
            "# JSON-RPC",
            intro,
            "## Methods",
            *map(_method, document["methods"]),
            "## Events",
            table(("Event", "Payload"), payloads),
            "## Notifications",
            table(("Notification", "Sent by", "Parameters"), notifications),
            "## Errors",
            "Every method can return any of them.",
            table(("Code", "Name", "Meaning"), failures),
            "## Schemas",
            *_schemas(document["components"]["schemas"]),
        ]
    )


def _method(method: Schema) -> str:
    params = {
        "required": [each["name"] for each in method["params"] if each["required"]],
        "properties": {each["name"]: each["schema"] for each in method["params"]},
    }
    result = f"Returns {type_of(method['result']['schema'])}."
    return join([f"### {method['name']}", f"{method['summary']} {result}", properties(params)])


# --- Python --------------------------------------------------------------------------------------------------


def facets() -> dict[str, type]:
    """Return the types of the facets of a SessionDB by name."""
    with db.SessionDB(":memory:") as store:
        return {name: type(getattr(store, name)) for name in FACETS}


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def api_links() -> Iterator[tuple[str, str]]:
    """Yield the public names as the overview has them, `head` or `mail.post`, and the targets of their links."""
    owners = {"": ("holdfast.SessionDB", db.SessionDB)}
    owners |= {f"{name}.": (_path(kind), kind) for name, kind in facets().items()}
    for prefix, (path, kind) in owners.items():
        yield from ((f"{prefix}{name}", f"[{path}.{name}]") for name in dir(kind) if not name.startswith("_"))
    for name in ("AIAgent", "AsyncSessionDB", "SessionDB", "current_session", "current_session_id", "tool"):
        yield name, f"[holdfast.{name}]"
    yield from ((name, f"[holdfast.types.{name}]") for name in ("NewConversation", "NewMessage"))
    yield from ((name, f"(python/{name}.md)") for name in ("events", "model", "reports", "types"))
    yield from (("errors", "(errors.md)"), ("settings", "(python/agent.md#settings)"))


def python_pages() -> dict[str, str]:
    """Return pages whose content mkdocstrings fills in."""
    of_facets = [
        join([f"## db.{name} {{ #db-{name} }}", describe(_path(kind), 3, members_order="alphabetical")])
        for name, kind in facets().items()
    ]
    return {
        "python/session-db.md": join(
            [
                describe("holdfast.SessionDB", 1, filters=METHODS_ONLY, members_order="alphabetical"),
                "Further methods are in its [facets](facets.md).",
            ]
        ),
        "python/facets.md": join(
            [
                "# Facets",
                "Groups of methods of a `SessionDB`, for programs that do more than keep conversations.",
                *of_facets,
            ]
        ),
        "python/async-session-db.md": join(
            [
                describe("holdfast.AsyncSessionDB", 1, filters=METHODS_ONLY, inherited_members=False),
                "It also has every method of [SessionDB](session-db.md) and of its [facets](facets.md), as coroutines.",
            ]
        ),
        "python/agent.md": join(
            [
                "# AIAgent",
                *map(describe, ("holdfast.AIAgent", "holdfast.tool")),
                *map(describe, ("holdfast.current_session", "holdfast.current_session_id")),
                "## Settings",
                "The groups of settings that an `AIAgent` takes, in `holdfast.settings`.",
                describe("holdfast.agent.settings", 3, show_root_heading=False, show_root_toc_entry=False),
            ]
        ),
        "python/model.md": join(["# Models", *(describe(f"holdfast.model.{name}") for name in model.__all__)]),
        **{f"python/{name}.md": _module(name, f"holdfast.{name}") for name in ("events", "types", "reports")},
        "errors.md": _module("errors", "holdfast.errors"),
    }


def _module(name: str, path: str) -> str:
    heading = f"# {name.capitalize()}"
    return join([heading, describe(path, show_root_heading=False, show_root_toc_entry=False)])


def describe(path: str, level: int = 2, **options: object) -> str:
    """Return the directive by which mkdocstrings describes an object."""
    given = {"heading_level": level, **options}
    return f"::: {path}\n    options: {json.dumps(given)}"
