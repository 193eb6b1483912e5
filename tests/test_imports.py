"""Imports point to lower layers only, and each third-party package is imported in one place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "holdfast"

# From the top layer to the bottom. Packages of one layer do not import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
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
        *("content_parts", "events", "fault_points", "file_modes", "installation", "mail_types", "process_info"),
        *("promises", "redaction", "reports", "safe_text", "types", "errors"),
    ),
)
LAYER = {package: number for number, packages in enumerate(LAYERS) for package in packages}

# Wiring knows the settings; values are made of values.
SAME_LAYER = {
    ("app", "config"),
    *(("events", name) for name in ("content_parts", "types", "errors")),
    *(("content_parts", name) for name in ("types", "errors")),
    *(("types", name) for name in ("errors", "mail_types")),
}

# The package itself has the version, and hands out its public names when they are asked for.
ROOT = "__init__"
ASKS_ROOT = {"cli", "app"}

# Loading by name: only where nothing may be loaded before it is asked for.
LOADS_BY_NAME = {"__init__.py", "cli/__init__.py", "cli/lazy_group.py", "gateway/settings.py"}
LOADS_BY_NAME |= {"model/__init__.py", "tools/mcp/servers.py"}

# Third-party packages that one module imports. The demo needs sqlite3 for its naive tables.
ONLY_IN = {
    "sqlite3": "cli/demo.py",
    "platformdirs": "config.py",
    "slack_sdk": "gateway/platforms/slack.py",
    "httpx2": "model/http.py",
    "tomlkit": "cli/settings_edit.py",
    "tomllib": "config.py",
    "uvicorn": "gateway/platforms/http/server.py",
    "websockets": "rpc/websocket_transport.py",
}

# The library that speaks to servers of tools is given a client of that kind, so there it has to be made. Replies are
# posted to addresses that were looked up before.
ALSO_IN = {("httpx2", "tools/mcp/transports.py"), ("httpx2", "gateway/platforms/http/callbacks.py")}

# Third-party packages that one package of ours imports; the rest runs without them.
ONLY_BELOW = {
    "apsw": ("store/sqlite/",),
    "psycopg": ("store/postgres/",),
    "textual": ("tui/",),
    "acp": ("acp/",),
    "nio": ("gateway/platforms/matrix/",),
    "imapclient": ("gateway/platforms/email/",),
    "aiosmtplib": ("gateway/platforms/email/",),
}

# Packages of an optional dependency, loaded by the one module that needs them.
ON_DEMAND = {
    ("store/db.py", "holdfast.store.postgres"),
    ("installation.py", "importlib"),
    ("gateway/platforms/email/__init__.py", "holdfast.gateway.platforms.email"),
    ("gateway/platforms/matrix/__init__.py", "holdfast.gateway.platforms.matrix"),
}

# Optional dependencies: imported where they are used, so that the rest runs without them.
OPTIONAL = {"psycopg", "textual", "telegram", "discord", "slack_sdk", "acp", "mcp", "opentelemetry", "xllamacpp"}

# Besides the settings: the session of a process that a tool started, the keys of models that a program embeds, and the
# variables that commands inherit.
READS_ENVIRONMENT = ("config.py", "agent/current_session.py", "model/providers.py", "tools/shell/environment.py")


def package_of(path: str) -> str:
    return path.removesuffix(".py").split("/")[0]


def imported_names(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names that an import statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        if node.module == "holdfast":
            yield from (f"holdfast.{alias.name}" for alias in node.names)
        else:
            yield node.module or ""


def nested_nodes(tree: ast.Module) -> set[ast.AST]:
    """Return all nodes inside of functions and classes."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    return {each for node in ast.walk(tree) if isinstance(node, inner) for each in ast.walk(node) if each is not node}


def find_violations(path: str, source: str) -> list[str]:
    """Return the violations of one file; the path is relative to the package."""
    tree = ast.parse(source, path)
    inside = nested_nodes(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            found.append("imports relatively")
        for name in imported_names(node):
            found += check_import(path, name, node in inside)
        found += check_use(path, node)
    return [f"{path}: {wrong}" for wrong in found]


def check_import(path: str, name: str, inside: bool) -> list[str]:
    top, *below = name.split(".")
    package = package_of(path)
    found = []
    if inside and top not in OPTIONAL and (path, name) not in ON_DEMAND:
        found.append(f"imports {name} inside of a function or class")
    if ONLY_IN.get(top, path) != path and (top, path) not in ALSO_IN:
        found.append(f"imports {top}, which belongs to {ONLY_IN[top]}")
    if top in ONLY_BELOW and not path.startswith(ONLY_BELOW[top]):
        found.append(f"imports {top}, which belongs to {ONLY_BELOW[top][0]}")
    if top == "holdfast":
        found += check_direction(package, below[0] if below else ROOT)
    return found


def check_direction(package: str, target: str) -> list[str]:
    if target not in LAYER:
        # A name of the package itself: its version, for the few who show it.
        allowed = package in ASKS_ROOT and target in (ROOT, "__version__")
        return [] if allowed else [f"asks the package for {target}"]
    if package not in LAYER and package != ROOT:
        return [f"is in a package, {package}, that is on no layer"]
    below = package == ROOT or LAYER[package] < LAYER[target]
    if below or package == target or (package, target) in SAME_LAYER:
        return []
    return [f"imports {target} from {package}"]


def check_use(path: str, node: ast.AST) -> list[str]:
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


FILES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES)
def test_imports_point_to_lower_layers_only(path: str) -> None:
    assert find_violations(path, (SOURCE / path).read_text("utf-8")) == []


def test_every_file_is_in_a_known_layer() -> None:
    assert {package_of(path) for path in FILES} <= {*LAYER, ROOT}


def test_every_listed_exception_exists() -> None:
    existing = set(FILES)
    side_doors = {path for _, path in ALSO_IN}
    on_demand = {path for path, _ in ON_DEMAND}
    assert set(ONLY_IN.values()) | side_doors | on_demand | LOADS_BY_NAME | set(READS_ENVIRONMENT) <= existing


TESTS = Path(__file__).parent
READS_ROUNDS = TESTS / "test_docs.py"
"""Compares the numbers in the README with the constants of the tests."""


def test_no_test_module_imports_another() -> None:
    imports = re.compile(r"^from tests\S* import (\(\s[^)]*)?.*\btest_|^from tests\S*\.test_", re.MULTILINE)
    modules = [path for path in TESTS.rglob("*.py") if imports.search(path.read_text("utf-8"))]
    assert modules == [READS_ROUNDS]


@pytest.mark.parametrize(
    ("path", "source", "wrong"),
    [
        ("store/db.py", "from holdfast.cli import console", "imports cli from store"),
        ("tools/recall.py", "from holdfast.store.db import SessionDB", "imports store from tools"),
        ("agent/loop.py", "from holdfast import SessionDB", "asks the package for SessionDB"),
        ("cellar/junk.py", "from holdfast import errors", "is in a package, cellar, that is on no layer"),
        ("store/db.py", "from . import log", "imports relatively"),
        ("store/db.py", "def f():\n    import json", "imports json inside of a function or class"),
        ("store/db.py", "import apsw", "imports apsw, which belongs to store/sqlite/"),
        ("agent/loop.py", "import importlib\nimportlib.import_module('x')", "loads a module by name"),
        ("store/db.py", "import os\nos.environ['X']", "reads the environment"),
        ("cli/doctor.py", "def f(db):\n    return db.driver.path", "uses the driver of a store"),
    ],
)
def test_checker_reports_a_violation(path: str, source: str, wrong: str) -> None:
    assert find_violations(path, source) == [f"{path}: {wrong}"]
