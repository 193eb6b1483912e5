"""Folders belong to the conversation: given at its birth or later, for lists to choose by."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from holdfast import SessionDB, errors, types
from holdfast.store import titles
from tests.support import conversations


def listed(db: SessionDB, folder: str | None, **other: object) -> list[str]:
    return [each.conversation_id for each in db.list_sessions(folder=folder, **other)]


def test_a_conversation_is_born_in_its_folder(db: SessionDB) -> None:
    made = db.create_session("made", source="test", folder="/work/one")
    create = types.NewConversation(source="test", folder="/work/two/")
    db.append_message("said", role="user", content="a", create=create)
    db.begin_conversation("begun", types.NewMessage(role="user"), create)
    conversations.begin(db, "nowhere", "a")
    assert made.folder == "/work/one"
    found = {each.id: each.folder for each in db.list_sessions()}
    assert found == {"made": "/work/one", "said": "/work/two", "begun": "/work/two", "nowhere": None}
    assert db.conversation("said").folder == db.head("said").folder == "/work/two"


def test_folder_is_of_the_conversation_whichever_session_is_given(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    head = conversations.compact(db, "talk", 1)
    assert db.set_session_folder("talk", "/work//x/../one/") == "/work/one"
    assert [session.folder for session in db.sessions("talk")] == ["/work/one", "/work/one"]
    assert conversations.compact(db, "talk", 1).folder == "/work/one"
    assert db.set_session_folder(head.id, None) is None
    assert db.get_session("talk").folder is None


def test_folder_raises_no_epoch_and_hinders_no_work(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    work = db.acquire_lease("talk", "compact")
    db.set_session_folder("talk", "/work")
    assert db.conversation("talk").epoch == 1
    assert db.commit_compaction(work, summary="s", cut_seq=1).folder == "/work"


def test_a_continuation_of_two_calls_stays_or_is_told_where(db: SessionDB) -> None:
    db.create_session("talk", source="test", folder="/one")
    db.end_session("talk", "compression")
    assert db.create_session("next", source="test", parent_session_id="talk").folder == "/one"
    db.end_session("next", "compression")
    assert db.create_session("last", source="test", parent_session_id="next", folder="/two").folder == "/two"


def test_a_branch_is_where_its_origin_is_unless_told_otherwise(db: SessionDB) -> None:
    db.create_session("talk", source="test", folder="/one")
    conversations.say(db, "talk", "a")
    assert db.branch("talk", branch_id="same").folder == "/one"
    assert db.branch("talk", branch_id="other", folder="/two").folder == "/two"
    db.set_session_folder("talk", None)
    assert db.branch("talk", branch_id="none").folder is None
    assert db.get_session("same").folder == "/one"


def test_a_branch_of_two_calls_is_where_its_origin_is_unless_told_otherwise(db: SessionDB) -> None:
    db.create_session("talk", source="test", folder="/one")
    assert db.create_session("same", source="test", parent_session_id="talk").folder == "/one"
    assert db.create_session("other", source="test", parent_session_id="talk", folder="/two").folder == "/two"
    db.set_session_folder("talk", None)
    assert db.create_session("none", source="test", parent_session_id="talk").folder is None


@pytest.mark.parametrize(
    "folder",
    ["", "here", "./here", "~/here", "C:here", "/\0", "/\ud800", "/" + "x" * 4096, "/" * 1_000_000, 5, b"/", ["/"]],
    ids=conversations.short,
)
def test_what_is_no_folder_is_refused(db: SessionDB, folder: object) -> None:
    conversations.begin(db, "talk", "a")
    with conversations.nothing_changes(db):
        for call in (
            lambda: db.set_session_folder("talk", folder),
            lambda: db.create_session("new", source="test", folder=folder),
            lambda: db.branch("talk", folder=folder),
            lambda: db.list_sessions(folder=folder),
            lambda: db.append_message("new", role="user", create=types.NewConversation(source="test", folder=folder)),
        ):
            with pytest.raises(errors.InvalidArgument) as refusal:
                call()
            assert isinstance(refusal.value, ValueError)
            assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    "folder",
    ["/", "/a b/ü/漢字", "/with\nlines and\ttabs", "/" + "x" * 4095, "C:\\Users\\ann", "\\\\host\\share\\work"],
)
def test_any_absolute_path_comes_back_as_it_was(db: SessionDB, folder: str) -> None:
    conversations.begin(db, "talk", "a")
    assert db.set_session_folder("talk", folder) == folder
    assert (db.get_session("talk").folder, listed(db, folder)) == (folder, ["talk"])
    assert db.admin.fsck().ok


def test_a_folder_that_no_store_can_keep_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert titles.local_folder("here") == str(tmp_path / "here")
    assert [titles.local_folder(each) for each in (None, "/\udcff", "/\0")] == [None, None, None]


def test_an_unknown_conversation_has_no_folder_to_set(db: SessionDB) -> None:
    with pytest.raises(errors.NoSuchSession):
        db.set_session_folder("nobody", "/work")


# --- lists -------------------------------------------------------------------------------------------------


def test_a_list_of_a_folder_has_those_of_it_and_those_of_none(db: SessionDB) -> None:
    for name, folder in (("one", "/work/one"), ("below", "/work/one/below"), ("two", "/work/two"), ("none", None)):
        db.create_session(name, source="test", folder=folder, owner="me" if name == "none" else "")
        conversations.say(db, name, "a")
    assert sorted(listed(db, "/work/one")) == ["none", "one"]
    assert sorted(listed(db, "/work/./two/")) == ["none", "two"]
    assert listed(db, "/elsewhere") == ["none"]
    assert listed(db, "/work/one", owner="") == ["one"]
    assert len(listed(db, None)) == 4
    db.end_conversation("two", "done")
    assert listed(db, "/work/two", live=False, every=True) == ["two"]
    db.set_session_folder("two", "/work/one")
    db.delete_conversation("one")
    assert sorted(listed(db, "/work/one")) == ["none", "two"]


def test_pages_of_a_folder_are_right_wherever_others_stand_between(db: SessionDB, clock: conversations.Clock) -> None:
    expected = []
    for number in range(24):
        folder = ("/one", "/two", "/two", None)[number % 4]
        db.create_session(f"c{number}", source="test", folder=folder)
        if number % 3:  # one without a message is as active as it is new
            conversations.say(db, f"c{number}", "a")
        if folder != "/two":
            expected.insert(0, f"c{number}")
        clock.advance(700)  # each in ten minutes of its own
    for limit in range(1, 13):
        assert listed(db, "/one", limit=limit) == expected[:limit]
        assert listed(db, "/one", limit=3, skip=limit) == expected[limit : limit + 3]


# --- what travels ------------------------------------------------------------------------------------------


def test_a_folder_travels_with_an_export(db: SessionDB) -> None:
    db.create_session("talk", source="test", folder="/work/one")
    conversations.say(db, "talk", "a")
    conversations.begin(db, "nowhere", "a")
    out = io.StringIO()
    db.admin.export_to(out)
    assert out.getvalue().count('"folder"') == 1
    with SessionDB(":memory:") as there:
        assert there.admin.import_from(io.StringIO(out.getvalue())).ok
        assert {each.id: each.folder for each in there.list_sessions()} == {"talk": "/work/one", "nowhere": None}
        again = io.StringIO()
        there.admin.export_to(again)
    assert again.getvalue() == out.getvalue()


def test_a_conversation_worked_on_elsewhere_since_then_is_the_same(db: SessionDB) -> None:
    db.create_session("talk", source="test", folder="/work/one")
    conversations.say(db, "talk", "a")
    out = io.StringIO()
    db.admin.export_to(out)
    for folder in ("/work/two", None):
        db.set_session_folder("talk", folder)
        assert db.admin.import_from(io.StringIO(out.getvalue())).ids("already_there") == ["talk"]
        assert db.conversation("talk").folder == folder
