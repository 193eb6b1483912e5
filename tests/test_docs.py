"""The documents: examples run and print their output blocks, links lead somewhere, lists are complete."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from tests.faults import (
    interleavings,
    test_interleavings,
    test_kill_points,
    test_migrations,
    test_races,
    test_server_faults,
)
from tests.support import documents, facets

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
DECISIONS = sorted(ROOT.glob("docs/decisions/[0-9]*.md"))
SECTIONS = ["Context", "Decision", "Consequences", "Revisit when"]

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
MACHINE_PATH = re.compile(r"(?<![\w.~-])(/(home|Users|root|work|tmp|mnt|opt|srv|var)/|[A-Z]:\\)")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def fenced(page: Path) -> Iterator[tuple[str | None, str]]:
    """Every line of a page with the kind of block it is in: None outside, "python", "output", "" …"""
    kind: str | None = None
    for line in page.read_text("utf-8").splitlines():
        fence = re.match(r"```(\w*)$", line)
        if fence:
            kind = fence[1] if kind is None else None
            yield "fence", ""
        else:
            yield kind, line
    assert kind is None, f"a block of {named(page)} is not closed"


def program_of(page: Path) -> str:
    """The python of a page; all other lines are left empty, so a traceback names the line of the page."""
    return "\n".join(line if kind == "python" else "" for kind, line in fenced(page)) + "\n"


def output_of(page: Path) -> list[str]:
    return [line for kind, line in fenced(page) if kind == "output"]


def prose_of(page: Path) -> str:
    return "\n".join(line for kind, line in fenced(page) if kind is None)


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [page for page in PAGES if program_of(page).strip()], ids=named)
def test_examples_print_the_documented_output(page: Path, tmp_path: Path) -> None:
    script = tmp_path / f"{page.stem}.py"
    script.write_text(program_of(page), "utf-8")
    ran = subprocess.run(
        [sys.executable, "-W", "error", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert documents.output_pattern("\n".join(output_of(page))).fullmatch(ran.stdout), ran.stdout
    assert ran.stderr == ""


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere_and_no_path_is_of_a_machine(page: Path) -> None:
    assert [line for line in page.read_text("utf-8").splitlines() if MACHINE_PATH.search(line)] == []
    for target in LINK.findall(prose_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.is_relative_to(ROOT), target
        assert found.exists(), target
        assert anchor in {"", "only-dark", "only-light"} or anchor in anchors_of(found), target


def test_every_error_has_its_entry_in_concepts() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    raised = {each.__name__ for each in classes if each.__module__ == errors.__name__}
    entries = text_of("docs/concepts.md").partition("\n## Errors\n")[2].partition("\n## ")[0]
    assert re.findall(r"^- `(\w+)`: ", entries, re.MULTILINE) == [name for name in vars(errors) if name in raised]


def test_every_public_name_is_on_the_python_api_page() -> None:
    mentioned = set(re.findall(r"`([a-zA-Z_.]+)", prose_of(ROOT / "docs/reference/python-api.md")))
    assert (facets.calls() | {*holdfast.__all__}) - mentioned == set()
    assert {name for name in mentioned if name.partition(".")[0] in facets.FACETS} <= facets.calls()


def test_files_that_the_architecture_page_names_exist() -> None:
    text = text_of("docs/architecture.md")
    named = set(re.findall(r"`((?:store|compaction|salvage)/[\w./]*)`", text))
    assert len(named) > 30
    assert [path for path in named if not (ROOT / "src/holdfast" / path).exists()] == []
    packages = {path.name for path in (ROOT / "src/holdfast/store").iterdir() if (path / "__init__.py").exists()}
    assert [package for package in packages if f"`store/{package}/`" not in text] == []


def test_every_operation_with_fault_points_is_named() -> None:
    files = [path for part in ("store", "salvage") for path in (ROOT / "src/holdfast" / part).rglob("*.py")]
    sources = "\n".join(path.read_text("utf-8") for path in files)
    announced = set(re.findall(r"(?:\.write|Step|reach)\(\s*\"(\w+)\"", sources))
    words = " ".join(text_of("CONTRIBUTING.md").split())
    listed = words.partition("Operations are ")[2].partition(". Stages")[0]
    assert set(re.findall(r"\w+", listed)) - {"and"} == announced


def test_readme_states_how_often_the_faults_run() -> None:
    text = " ".join(text_of("README.md").split())
    rounds, orders = test_races.ROUNDS, test_interleavings.order_count(interleavings.GROUPS["end"])
    assert f"races of {test_races.PROCESSES} processes" in text
    assert f"{rounds['sqlite']} rounds on SQLite, {rounds['postgres']} on PostgreSQL" in text
    assert f"({orders:,} orders)" in text
    assert "20 kills at every named point of appends, leases, compactions and ends" in text
    assert {"append", "acquire", "renew", "commit", "end"} == test_kill_points.OFTEN
    assert (test_kill_points.KILLS_OFTEN, test_kill_points.KILLS) == (20, 1)
    assert (test_migrations.KILLS, test_migrations.STATEMENT_KILLS) == (20, 3)
    contributing = " ".join(text_of("CONTRIBUTING.md").split())
    assert "kills 20 times at every point of append, acquire, renew, commit and end, and once" in contributing
    assert "migrate on SQLite, 20 times at every stage of its transaction and 3 times at every" in contributing
    assert f"The server is killed {test_server_faults.KILLS} times under load" in contributing


def test_contributing_shows_every_package() -> None:
    layout = text_of("CONTRIBUTING.md").partition("src/holdfast/\n")[2].partition("tests/")[0]
    packages = {path.parent.name for path in (ROOT / "src/holdfast").glob("*/__init__.py")}
    columns = [line.strip().partition("  ")[0] for line in layout.splitlines() if not line.startswith("    ")]
    assert {name for column in columns for name in re.findall(r"(\w+)/", column)} == packages


def test_decisions_are_numbered_listed_and_of_one_form() -> None:
    assert len({int(page.name[:4]) for page in DECISIONS}) == len(DECISIONS)
    index = text_of("docs/decisions/index.md")
    for page in DECISIONS:
        number, _, title = page.read_text("utf-8").partition("\n")[0].removeprefix("# ").partition(" ")
        assert number == page.name[:4]
        assert f"| [{number}]({page.name}) | {title} | " in index
        assert re.findall(r"^## (.+)$", page.read_text("utf-8"), re.MULTILINE) == SECTIONS


def test_contributing_lists_the_verbs_as_make_does() -> None:
    verbs = dict(re.findall(r"^([a-z]+):.*?## (.+)$", text_of("Makefile"), re.MULTILINE))
    del verbs["help"]
    assert dict(re.findall(r"^\| `make (\w+)` \| (.+) \|$", text_of("CONTRIBUTING.md"), re.MULTILINE)) == verbs
