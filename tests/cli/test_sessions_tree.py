"""`sessions tree` draws the lineage: sessions in order, cuts between them, branches where they came from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SessionDB
from tests.cli.conftest import BRANCH, SECOND, THIRD, TRIP
from tests.support import cli_process

Holdfast = Callable[..., cli_process.Run]

TREE = f"""\
{TRIP}  Trip to Lisbon  8 messages
├─ ○ {TRIP}  1–6  ended 2026-05-28 20:32: compression
│  └─ branch  {BRANCH}  Trip to Lisbon #2  6 messages  shares 1–5 of {TRIP}
│     └─ ● {BRANCH}  6  live  <- head
├─ ◆ cut after 4, 5–6 stay, epoch 2, pinned 2, summary of 17 characters, in force
├─ ○ {SECOND}  7–8  ended 2026-05-28 20:35: compression
├─ ◆ cut after 6, 7–8 stay, epoch 3, summary of 7 characters, undone
└─ ● {THIRD}  no messages  live  <- head
"""
OTHER = """\
other  1 message  ended
└─ ○ other  1  ended 2026-05-28 20:37: done  <- head
"""


@pytest.mark.parametrize("name", [TRIP, THIRD, BRANCH, "20260529"])
def test_tree_of_any_part_is_the_whole_lineage(holdfast: Holdfast, trip: Path, name: str) -> None:
    assert holdfast("sessions", "tree", name, "--db", trip) == (0, TREE, "")


def test_tree_without_a_name_draws_every_lineage_once(holdfast: Holdfast, trip: Path) -> None:
    assert holdfast("sessions", "tree", "--db", trip) == (0, OTHER + "\n" + TREE, "")


def test_limit_is_kept_and_said(holdfast: Holdfast, trip: Path) -> None:
    done = holdfast("sessions", "tree", "--limit", "1", "--db", trip)
    assert (done.code, done.out) == (0, OTHER)
    assert "--limit" in done.err


def test_json_has_every_conversation_of_the_lineage(holdfast: Holdfast, trip: Path) -> None:
    data = holdfast("sessions", "tree", BRANCH, "--json", "--db", trip).data
    assert (data["database"], data["roots"]) == (str(trip), [TRIP])
    root, branch = data["conversations"]
    assert (root["id"], root["head_id"], root["branches"]) == (TRIP, THIRD, [BRANCH])
    assert [session["id"] for session in root["sessions"]] == [TRIP, SECOND, THIRD]
    assert root["sessions"][0]["compaction"] is None
    assert root["sessions"][1]["compaction"]["cut_seq"] == 4
    assert (branch["id"], branch["forked_from"], branch["forked_at"]) == (BRANCH, TRIP, 5)


def test_a_child_of_a_deleted_conversation_is_still_drawn(holdfast: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "child.db"
    with SessionDB(path) as db:
        db.create_session("parent", source="test")
        db.append_message("parent", role="user", content="hi")
        db.create_session("child", source="test", parent_session_id="parent")
        db.delete_conversation("parent")
    out = holdfast("sessions", "tree", "child", "--db", path).out
    assert out.splitlines()[0] == "branch  child  0 messages  shares no messages of parent"


def test_branches_of_any_depth_are_drawn(holdfast: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "deep.db"
    with SessionDB(path, durability="process-crash") as db:
        db.create_session("b0", source="test")
        db.append_message("b0", role="user", content="hi")
        for number in range(1, 1_200):
            db.branch(f"b{number - 1}", branch_id=f"b{number}")
    for arguments in ([], ["--json"]):
        done = holdfast("sessions", "tree", "b1199", *arguments, "--db", path)
        assert (done.code, done.err) == (0, "")
        assert all(f"b{number}" in done.out for number in range(1_200))


def test_on_a_terminal_lines_fit(trip: Path, tmp_path: Path) -> None:
    shown = cli_process.run_in_terminal(tmp_path, "sessions", "tree", "--db", trip, columns=50, env={"NO_COLOR": "1"})
    assert all(len(line) <= 50 for line in shown.out.splitlines())
    assert "…" in shown.out
