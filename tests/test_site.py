"""The documentation site: it builds without warnings, its references are complete, and it works offline."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click
import msgspec
import pytest

import holdfast
from holdfast import config, errors, events, model, reports, settings, types
from holdfast.agent import commands
from holdfast.cli import program
from holdfast.gateway.platforms.http import openapi
from holdfast.model import providers
from tests.support import documents, facets

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
ADDRESS = "https://github.com/holdfast-agent/holdfast"


class SitePage(HTMLParser):
    """The ids, links, resources and code of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids = set[str]()
        self.links = set[str]()
        self.resources = set[str]()
        self.text = path.read_text("utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids.add(values.get("id", ""))
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        elif tag in ("script", "link", "img", "iframe"):
            self.resources.add(values.get("src") or values.get("href") or "")

    @property
    def code(self) -> set[str]:
        return set(re.findall(r"<code>([^<]+)</code>", self.text))


Site = dict[str, SitePage]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    target = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", target],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    return target


@pytest.fixture(scope="module")
def site(folder: Path) -> Site:
    """The pages by path."""
    return {path.relative_to(folder).as_posix(): SitePage(path) for path in folder.rglob("*.html")}


def test_every_command_and_option_is_in_the_cli_reference(site: Site) -> None:
    page, found = site["reference/cli.html"], documents.commands()
    assert len(found) > 40
    paths = {"-".join(("holdfast", *path[:depth])) for path in found for depth in range(len(path) + 1)}
    assert paths - page.ids == set()
    parameters = [each for command in (program.program, *found.values()) for each in command.params]
    options = {each.opts[0] for each in parameters if isinstance(each, click.Option) and not each.hidden}
    assert [each for each in options if each not in " ".join(page.code)] == []
    assert set(commands.COMMANDS) - site["reference/slash-commands.html"].ids == set()


def test_every_setting_and_variable_is_in_the_reference(site: Site) -> None:
    page = site["reference/settings.html"]
    _, schemas = msgspec.json.schema_components([config.SettingsFile])
    inner = {name for schema in schemas.values() for name, each in schema["properties"].items() if "$ref" in str(each)}
    named = {name for schema in schemas.values() for name in schema["properties"]} - inner
    assert len(named) > 60
    assert named - page.code == set()
    assert [name for name in inner if not any(name.lower() in each.split("-") for each in page.ids)] == []
    source = Path(config.__file__).read_text("utf-8")
    read = set(re.findall(r"given\.get\(\"([A-Z_]+)\"", source)) - {"TERM"}
    read |= {name for each in providers.PROVIDERS.values() for name in (each.key_env, each.base_url_env) if name}
    assert read - page.code == set()


def test_every_http_operation_is_in_the_reference(site: Site) -> None:
    text = site["reference/http.html"].text
    document = openapi.document(["offline"], True, "X-Conversation-Id")
    operations = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert [each for each in operations if each not in text] == []


def test_every_rpc_method_event_error_and_schema_is_in_the_reference(site: Site) -> None:
    page = site["reference/rpc.html"]
    document: dict[str, Any] = json.loads((DOCS / "reference/rpc.schema.json").read_text("utf-8"))
    methods = {each["name"] for each in document["methods"]}
    assert {name.replace(".", "") for name in methods} - page.ids == set()
    assert {name.lower() for name in document["components"]["schemas"]} - page.ids == set()
    assert {*document["x-events"], *document["x-notifications"]} - page.code == set()
    assert {str(each["code"]) for each in document["components"]["errors"].values()} - page.code == set()


def test_every_public_name_of_the_package_is_in_the_python_reference(site: Site) -> None:
    everywhere = set[str]().union(*(page.ids for path, page in site.items() if path.startswith("reference/")))
    methods = {
        f"{facets.FACETS[facet].__module__}.{facets.FACETS[facet].__name__}.{name}"
        for facet, _, name in (call.partition(".") for call in facets.calls())
        if name
    }
    methods |= {f"holdfast.SessionDB.{call}" for call in facets.calls() if "." not in call}
    assert methods - everywhere == set()
    for module in (errors, events, reports, settings, types):
        classes = [
            each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__
        ]
        assert {f"{module.__name__}.{each.__name__}" for each in classes} - everywhere == set()
    assert {f"holdfast.model.{name}" for name in model.__all__} - everywhere == set()
    modules = {"errors", "events", "model", "reports", "settings", "types"}
    named = {f"holdfast.{name}" for name in {*holdfast.__all__} - modules - {"NewConversation", "NewMessage"}}
    assert named - everywhere == set()


def test_no_page_loads_anything_from_another_host(site: Site, folder: Path) -> None:
    resources = {each for page in site.values() for each in page.resources}
    assert [each for each in resources if re.match(r"(?:[a-z]+:)?//", each)] == []
    styles = "".join(path.read_text("utf-8") for path in folder.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)]*", styles) == []
    # With this attribute, the theme's script asks GitHub's API for figures about the repository.
    assert [path for path, page in site.items() if 'data-md-component="source"' in page.text] == []


def test_links_of_the_site_lead_to_pages_and_to_the_repository(site: Site, folder: Path) -> None:
    for path, page in site.items():
        for link in page.links:
            target = unquote(link.partition("#")[0])
            if target.startswith(ADDRESS + "/blob/HEAD/"):
                assert (ROOT / target.removeprefix(ADDRESS + "/blob/HEAD/")).exists(), (path, link)
            elif path != "404.html" and target and not re.match(r"[a-z]+:", target):
                assert (folder / path).parent.joinpath(target).exists(), (path, link)
