"""The rooms of the house: imports point downwards only, and each foreign part has one door.

The package is read with `ast`, never imported, so a wrong import is found even where it would not run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "holdfast"

# From the top of the house to its ground. Rooms on one line are strangers to each other.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli",),
    ("app", "config"),
    ("gateway", "chat", "tui", "rpc_server", "acp", "web"),
    ("terminal",),
    ("runtime",),
    ("agent",),
    ("compaction", "salvage"),
    ("store", "model", "tools", "rpc"),
    (
        "content_parts",
        "events",
        "fault_points",
        "file_modes",
        "mail_types",
        "process_info",
        "promises",
        "redaction",
        "reports",
        "safe_text",
        "types",
        "errors",
    ),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

# Wiring knows the settings; values are made of values.
ON_ONE_FLOOR = {
    ("app", "config"),
    ("events", "content_parts"),
    ("events", "types"),
    ("events", "errors"),
    ("content_parts", "types"),
    ("content_parts", "errors"),
    ("types", "errors"),
    ("types", "mail_types"),
}

# The package itself has the version, and hands out its public names when they are asked for.
ROOT = "__init__"
ASKS_ROOT = {"cli", "app"}

# Loading by name: only where nothing may be loaded before it is asked for.
LOADS_BY_NAME = {
    "__init__.py",
    "cli/__init__.py",
    "cli/lazy_group.py",
    "gateway/settings.py",
    "model/__init__.py",
    "tools/mcp/servers.py",
}

# Foreign parts that have one door each. The race in the demo has a naive side, which is all sqlite3 is for.
DOORS = {
    "sqlite3": "cli/demo.py",
    "platformdirs": "config.py",
    "httpx2": "model/http.py",
    "tomllib": "config.py",
    "uvicorn": "gateway/platforms/http/server.py",
    "websockets": "rpc/websocket_transport.py",
}

# The library that speaks to servers of tools is given a client of that kind, so there it has to be made. Replies are
# posted to addresses that were looked up before.
SIDE_DOORS = {("httpx2", "tools/mcp/transports.py"), ("httpx2", "gateway/platforms/http/callbacks.py")}

# Foreign parts that have a few rooms to themselves: what is beside them runs without.
ROOMS = {
    "apsw": ("store/sqlite/",),
    "psycopg": ("store/postgres/",),
    "textual": ("tui/",),
    "acp": ("acp/",),
}

# Packages of an optional dependency, loaded by the one module that needs them.
ON_DEMAND = {("store/db.py", "holdfast.store.postgres")}

# Optional dependencies: imported where they are used, so that the rest runs without them.
OPTIONAL = {
    "psycopg",
    "textual",
    "telegram",
    "discord",
    "slack_bolt",
    "acp",
    "mcp",
    "opentelemetry",
    "xllamacpp",
}

# Besides the settings: the session of a process that a tool started, the keys of models that a program embeds, and the
# variables that commands inherit.
READS_ENVIRONMENT = ("config.py", "agent/current_session.py", "model/providers.py", "tools/shell/environment.py")


def room_of(path: str) -> str:
    return path.removesuffix(".py").split("/")[0]


def imported(node: ast.AST) -> Iterator[str]:
    """The dotted names an import statement reaches; `from holdfast import errors` reaches holdfast.errors."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        if node.module == "holdfast":
            yield from (f"holdfast.{alias.name}" for alias in node.names)
        else:
            yield node.module or ""


def within(tree: ast.Module) -> set[ast.AST]:
    """Everything inside of a function or a class."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    return {
        child for node in ast.walk(tree) if isinstance(node, inner) for child in ast.walk(node) if child is not node
    }


def wrongs(path: str, source: str) -> list[str]:
    """What one file does that it may not; path is relative to the package."""
    tree = ast.parse(source, path)
    inside = within(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            found.append("imports relatively")
        for name in imported(node):
            found += wrong_import(path, name, node in inside)
        found += wrong_use(path, node)
    return [f"{path}: {wrong}" for wrong in found]


def wrong_import(path: str, name: str, inside: bool) -> list[str]:
    top, *below = name.split(".")
    room = room_of(path)
    found = []
    if inside and top not in OPTIONAL and (path, name) not in ON_DEMAND:
        found.append(f"imports {name} inside of a function or class")
    if DOORS.get(top, path) != path and (top, path) not in SIDE_DOORS:
        found.append(f"imports {top}, which belongs to {DOORS[top]}")
    if top in ROOMS and not path.startswith(ROOMS[top]):
        found.append(f"imports {top}, which belongs to {ROOMS[top][0]}")
    if top == "holdfast":
        found += wrong_direction(room, below[0] if below else ROOT)
    return found


def wrong_direction(room: str, target: str) -> list[str]:
    if target not in FLOOR:
        # A name of the package itself: its version, for the few who show it.
        allowed = room in ASKS_ROOT and target in (ROOT, "__version__")
        return [] if allowed else [f"asks the package for {target}"]
    if room not in FLOOR and room != ROOT:
        return [f"is in a room, {room}, that is on no floor"]
    below = room == ROOT or FLOOR[room] < FLOOR[target]
    if below or room == target or (room, target) in ON_ONE_FLOOR:
        return []
    return [f"imports {target} from {room}"]


def wrong_use(path: str, node: ast.AST) -> list[str]:
    match node:
        case ast.Attribute(attr="driver") if not path.startswith("store/"):
            return ["uses the driver of a store"]
        case ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"):
            return [] if path in LOADS_BY_NAME else ["loads a module by name"]
        case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "environb" | "getenv"):
            return [] if path in READS_ENVIRONMENT else ["reads the environment"]
        case ast.ImportFrom(module="os", names=names) if {"environ", "getenv"} & {alias.name for alias in names}:
            return [] if path in READS_ENVIRONMENT else ["reads the environment"]
    return []


# --- the house as it is ------------------------------------------------------------------------------

FILES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES)
def test_imports_point_downwards_only(path: str) -> None:
    assert wrongs(path, (SOURCE / path).read_text("utf-8")) == []


def test_every_file_is_in_a_known_room() -> None:
    assert {room_of(path) for path in FILES} <= {*FLOOR, ROOT}


def test_no_listed_exception_is_left_over() -> None:
    existing = set(FILES)
    side_doors = {path for _, path in SIDE_DOORS}
    on_demand = {path for path, _ in ON_DEMAND}
    assert set(DOORS.values()) | side_doors | on_demand | LOADS_BY_NAME | set(READS_ENVIRONMENT) <= existing


# --- the checker itself ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "source", "wrong"),
    [
        ("store/db.py", "from holdfast.cli import console", "imports cli from store"),
        ("store/db.py", "import holdfast.agent.loop", "imports agent from store"),
        ("store/db.py", "from holdfast import model", "imports model from store"),
        ("store/db.py", "from holdfast import app", "imports app from store"),
        ("model/base.py", "from holdfast.store import db", "imports store from model"),
        ("tools/recall.py", "from holdfast.store.db import SessionDB", "imports store from tools"),
        ("gateway/router.py", "from holdfast.tui import app", "imports tui from gateway"),
        ("compaction/compress.py", "from holdfast import agent", "imports agent from compaction"),
        ("config.py", "from holdfast import app", "imports app from config"),
        ("errors.py", "from holdfast import types", "imports types from errors"),
        ("types.py", "from holdfast.store import db", "imports store from types"),
        ("agent/loop.py", "from holdfast import SessionDB", "asks the package for SessionDB"),
        ("agent/loop.py", "import holdfast", "asks the package for __init__"),
        ("cellar/junk.py", "from holdfast import errors", "is in a room, cellar, that is on no floor"),
        ("store/db.py", "from . import log", "imports relatively"),
        ("store/db.py", "def f():\n    import json", "imports json inside of a function or class"),
        (
            "store/db.py",
            "class C:\n    from holdfast import errors",
            "imports holdfast.errors inside of a function or class",
        ),
        (
            "store/log.py",
            "def f():\n    from holdfast.store.postgres import driver",
            "imports holdfast.store.postgres inside of a function or class",
        ),
        ("store/db.py", "async def f():\n    if True:\n        import re", "imports re inside of a function or class"),
        ("store/db.py", "import apsw", "imports apsw, which belongs to store/sqlite/"),
        ("store/fsck.py", "from apsw.ext import query_info", "imports apsw, which belongs to store/sqlite/"),
        ("cli/doctor.py", "import sqlite3", "imports sqlite3, which belongs to cli/demo.py"),
        ("chat/chat.py", "from textual.app import App", "imports textual, which belongs to tui/"),
        ("agent/loop.py", "import importlib\nimportlib.import_module('x')", "loads a module by name"),
        ("agent/loop.py", "__import__('x')", "loads a module by name"),
        ("store/db.py", "import os\nos.environ['X']", "reads the environment"),
        ("cli/console.py", "import os\nos.getenv('X')", "reads the environment"),
        ("cli/console.py", "from os import path, environ", "reads the environment"),
        ("cli/doctor.py", "def f(db):\n    return db.driver.path", "uses the driver of a store"),
    ],
)
def test_checker_flags(path: str, source: str, wrong: str) -> None:
    assert wrongs(path, source) == [f"{path}: {wrong}"]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("cli/doctor.py", "import holdfast\nfrom holdfast import app, errors\nfrom holdfast.store import db"),
        ("app.py", "from holdfast import config, errors\nfrom holdfast.gateway import router"),
        ("agent/loop.py", "from holdfast import events, types\nfrom holdfast.compaction import policy"),
        ("store/log.py", "from holdfast.store import driver, conversation_row"),
        ("tui/app.py", "def f():\n    import textual.app"),
        ("tui/theme.py", "from textual.theme import Theme"),
        ("store/sqlite/driver.py", "import apsw"),
        ("store/db.py", "def f(db):\n    return db.driver.path"),
        ("store/db.py", "def f():\n    from holdfast.store.postgres import driver"),
        ("cli/demo.py", "import sqlite3"),
        ("cli/lazy_group.py", "import importlib\nimportlib.import_module('x')"),
        ("config.py", "import os\nos.environ.get('X')"),
        ("__init__.py", "from holdfast.store.db import SessionDB"),
    ],
)
def test_checker_lets_pass(path: str, source: str) -> None:
    assert wrongs(path, source) == []
