"""An import stores whole conversations or none of them, reports each, and trusts nothing it reads."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import SessionDB, errors
from holdfast.store.transfer import import_
from tests.support import backends, conversations
from tests.support.backends import MakeDb
from tests.support.hostile_exports import HOSTILE, fresh, objects, resealed, rows, sample, where
from tests.support.random_histories import exported, imported


@functools.cache
def single_exports() -> dict[str, str]:
    """Each conversation of the sample as a separate export."""
    with fresh() as db:
        imported(db, sample())
        return {session.conversation_id: exported(db, session.id) for session in db.list_sessions()}


def assert_only_whole_conversations(db: SessionDB, report: Any) -> None:
    """Every stored conversation is as it was exported; a missing one was reported."""
    assert db.admin.fsck().ok
    here = {session.conversation_id: exported(db, session.id) for session in db.list_sessions()}
    assert here.items() <= single_exports().items()
    assert here == single_exports() or not report.ok


def outcomes(report: Any) -> dict[str, str]:
    return {outcome.conversation_id: outcome.outcome for outcome in report.outcomes}


def test_conversation_with_other_content_is_a_conflict_and_unchanged(db: SessionDB) -> None:
    conversations.begin(db, "made14", "something else")
    before = exported(db, "made14")
    report = imported(db, sample())
    assert outcomes(report) == {"first": "imported", "made12": "imported", "made14": "conflict"}
    assert isinstance(report.outcomes[2].error, errors.ImportConflict)
    assert report.outcomes[2].error.conversation_id == "made14"
    assert exported(db, "made14") == before


def test_conversation_that_went_on_is_a_conflict_and_a_changed_label_is_none(db: SessionDB) -> None:
    imported(db, sample())
    db.set_session_title("first", "Renamed")
    db.set_session_folder("first", "/elsewhere")
    db.set_session_metadata("first", {"ticket": 1})
    db.acquire_lease("first", "turn")
    db.bind_route("chat:1", None, version=db.route("chat:1").version)
    conversations.say(db, "made14", "more")
    with conversations.nothing_changes(db):
        report = imported(db, sample())
    assert outcomes(report) == {"first": "already_there", "made12": "already_there", "made14": "conflict"}
    assert report.outcomes[2].error.line == 1 + where(objects(), "conversation", 2)


def test_taken_titles_are_numbered_and_bound_routes_kept(db: SessionDB) -> None:
    conversations.begin(db, "mine", "x", title="Title")
    db.bind_route("chat:1", "mine", version=0)
    report = imported(db, sample())
    assert report.ok
    assert [outcome.title for outcome in report.outcomes] == ["Title #2", "Title #3", None]
    assert db.conversation("first").title == "Title #2"
    assert (report.outcomes[0].routes, db.route("chat:1").conversation_id) == (("chat:1",), "mine")
    assert imported(db, sample()).ids("already_there") == ["first", "made12", "made14"]


def test_session_id_of_another_conversation_is_a_conflict(db: SessionDB) -> None:
    second = next(line["id"] for line in objects() if line.get("kind") == "session" and line["ordinal"] == 2)
    conversations.begin(db, second, "x")
    report = imported(db, sample())
    assert outcomes(report) == {"first": "conflict", "made12": "refused", "made14": "imported"}
    assert "first" in str(report.outcomes[1].error)
    assert db.get_session("first") is None


def test_deleted_conversation_is_imported_on_request_and_once_under_a_new_id(db: SessionDB) -> None:
    imported(db, sample())
    for name in ("made12", "first"):
        db.delete_conversation(name)
    report = imported(db, sample())
    assert outcomes(report) == {"first": "refused", "made12": "refused", "made14": "already_there"}
    assert isinstance(report.outcomes[0].error, errors.ConversationDeleted)
    assert db.get_session("first") is None
    report = imported(db, sample(), revive=True)
    assert report.ok
    assert [outcome.kept_as for outcome in report.outcomes] == ["first~2", "made12~2", None]
    assert db.conversation("made12~2").forked_from.endswith("~2")
    with fresh() as whole:
        imported(whole, sample())
        assert conversations.seen(db, "made12~2") == conversations.seen(whole, "made12")
    assert imported(db, sample(), revive=True).ids("imported") == []
    db.delete_conversation("made12~2")
    assert imported(db, sample(), revive=True).outcomes[1].kept_as == "made12~3"
    text = exported(db, conversations.begin(db, "x" * 200, "one"))
    db.delete_conversation("x" * 200)
    (too_long,) = imported(db, text, revive=True).outcomes
    assert (too_long.outcome, type(too_long.error)) == ("refused", errors.ImportInvalid)


@pytest.mark.parametrize(
    "text",
    ["", "\n", "{}", "[]", "hello", '{"holdfast":"export","version":0}', "\ud800", "[" * 99_999],
    ids=conversations.short,
)
@backends.on_memory
def test_file_that_is_no_export_is_refused_at_its_first_line(db: SessionDB, text: str) -> None:
    with pytest.raises(
        errors.ImportInvalid, match=r"^Line 1: this is not (an export of Holdfast|valid Unicode)\.$"
    ) as refused:
        db.admin.import_from([text] if text else [])
    assert refused.value.line == 1


@pytest.mark.parametrize("cut", [0, 5], ids=["after a line", "within a line"])
def test_truncated_file_is_reported_and_leaves_whole_conversations(cut: int) -> None:
    for length in range(1, len(rows())):
        with fresh() as db:
            lines = [*rows()[:length], *([rows()[length][:-cut]] if cut else [])]
            report = imported(db, lines)
            assert not report.ok
            assert report.outcomes[-1].error.line == len(lines)
            assert_only_whole_conversations(db, report)


CHANGES: dict[str, Callable[[list[str], int, int], list[str]]] = {
    "swapped": lambda lines, one, other: [
        lines[{one: other, other: one}.get(place, place)] for place in range(len(lines))
    ],
    "lost": lambda lines, one, _: lines[:one] + lines[one + 1 :],
    "repeated": lambda lines, one, other: [*lines[:other], lines[one], *lines[other:]],
    "blank": lambda lines, one, _: [*lines[:one], "\n", *lines[one:]],
}


@hypothesis.settings(max_examples=max(25, hypothesis.settings().max_examples // 3))
@given(st.sampled_from(sorted(CHANGES)), st.integers(1, 10**6), st.integers(1, 10**6))
def test_change_of_the_order_of_lines_is_detected(how: str, one: int, other: int) -> None:
    last = len(rows()) - 1
    lines = CHANGES[how](rows(), 1 + one % last, 1 + other % last)
    with fresh() as db:
        report = imported(db, lines)
        assert report.ok == (lines == rows())
        assert_only_whole_conversations(db, report)


@hypothesis.settings(max_examples=max(25, hypothesis.settings().max_examples // 3))
@given(st.integers(0, 10**9), st.integers(1, 255))
def test_changed_byte_is_detected(place: int, change: int) -> None:
    data = bytearray(sample().encode())
    start = len(rows()[0])
    data[start + place % (len(data) - start)] ^= change
    with fresh() as db:
        report = db.admin.import_from(io.BytesIO(bytes(data)))
        # Line ends are no content.
        assert not report.ok or bytes(data).replace(b"\r", b"\n").strip(b"\n") == sample().encode().strip(b"\n")
        assert_only_whole_conversations(db, report)


@pytest.mark.parametrize("change", ["lost", "added", "reordered"])
@backends.on_memory
def test_change_of_whole_conversations_is_reported_at_the_end(db: SessionDB, change: str) -> None:
    begins = [where(objects(), "conversation", number) for number in range(3)]
    twig, other = rows()[begins[1] : begins[2]], rows()[begins[2] : -1]
    middle = {"lost": twig, "added": [*twig, *other, *other], "reordered": [*other, *twig]}[change]
    report = imported(db, [*rows()[: begins[1]], *middle, rows()[-1]])
    assert "conversations were lost, added, repeated" in str(report.outcomes[-1].error)
    assert report.outcomes[-1].conversation_id is None
    assert_only_whole_conversations(db, report)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("garbage\n", "this is not JSON."),
        ("x" * 10_000 + "\n", "this line is longer than 9,000 bytes."),
        (7, "this is neither text nor bytes."),
        (b"al\xffne\n", "this is not JSON."),
    ],
    ids=["no JSON", "long", "no text", "no UTF-8"],
)
@backends.on_memory
def test_conversations_after_a_damaged_line_are_imported(
    db: SessionDB, monkeypatch: pytest.MonkeyPatch, line: Any, message: str
) -> None:
    monkeypatch.setattr(import_, "MAX_LINE_BYTES", 9000)
    report = db.admin.import_from([*rows()[:5], line, *rows()[6:]])
    assert outcomes(report) == {"first": "refused", "made12": "refused", "made14": "imported"}
    assert (report.outcomes[0].error.line, str(report.outcomes[0].error)) == (6, f"Line 6: {message}")
    assert_only_whole_conversations(db, report)


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_line_is_refused_with_its_conversation(what: str) -> None:
    objs: list[Any] = list(objects())
    place = HOSTILE[what](objs)
    sealed_before = sum(isinstance(line, dict) and line.get("kind") == "sealed" for line in objs[:place])
    with fresh() as db:
        report = imported(db, resealed(objs))
        refused = [outcome for outcome in report.outcomes if not outcome.ok]
        assert refused, "it was imported"
        assert isinstance(refused[0].error, errors.ImportInvalid)
        assert place + 1 <= refused[0].error.line <= 1 + where(objs, "sealed", sealed_before)
        assert_only_whole_conversations(db, report)


_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 12), st.just(2**62), st.just(2**63), st.text(max_size=3), st.floats(-1, 3)
)


@given(st.integers(1, 10**6), st.integers(0, 10**6), _VALUES)
def test_invariants_hold_after_the_import_of_any_resealed_file(line: int, field: int, value: Any) -> None:
    objs = objects()
    chosen = objs[1 + line % (len(objs) - 1)]
    chosen[sorted(chosen)[field % len(chosen)]] = value
    with fresh() as db:
        report = imported(db, resealed(objs))
        assert report.outcomes
        assert db.admin.fsck().ok
        for session in db.list_sessions(limit=100):
            conversations.seen(db, session.id)
            db.append_message(session.id, role="user", content="next")


@backends.on_memory
def test_compaction_made_without_a_message_shown_since_is_refused(db: SessionDB) -> None:
    objs = objects()
    # As if the undo before the show had never happened.
    del objs[where(objs, "stand")]
    objs[where(objs, "compaction", 1)]["base_epoch"] = 3
    report = imported(db, resealed(objs))
    assert "a compaction covers messages that it was made without" in str(report.outcomes[0].error)


@pytest.mark.parametrize(
    ("change", "message"), [({"new": 1}, "has an unknown field 'new'"), ({"kind": "new"}, "is of an unknown kind")]
)
@backends.on_memory
def test_line_of_a_newer_version_asks_for_an_upgrade(db: SessionDB, change: dict[str, Any], message: str) -> None:
    objs = objects()
    place = where(objs, "message", 1)
    objs[place] |= change
    report = imported(db, resealed(objs))
    assert str(report.outcomes[0].error) == (
        f"Line {place + 1}: this line {message}; upgrade Holdfast if a newer version wrote it."
    )
    assert report.ids("imported") == ["made14"]
    with pytest.raises(errors.ImportInvalid, match="upgrade Holdfast"):
        imported(db, '{"holdfast":"export","version":2}\n')


def test_text_bytes_lists_and_other_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    path.write_text(sample(), "utf-8")
    with path.open("rb") as binary, path.open(encoding="utf-8") as text:
        for source in (binary, text, rows(), (row.encode() for row in rows()), io.StringIO(sample(), newline="\r\n")):
            with fresh() as db:
                assert db.admin.import_from(source).ok
                assert exported(db) == sample()
    path.write_bytes(sample().encode().replace(b"alone", b"al\xffne"))
    with fresh() as db, path.open(encoding="utf-8") as file:
        with pytest.raises(errors.ImportInvalid, match="not valid UTF-8"):
            db.admin.import_from(file)
        assert db.list_sessions() == []


def test_sample_is_imported_even_if_it_is_larger_than_memory(db: SessionDB, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_, "MAX_MEMORY_BYTES", 500)
    report = imported(db, resealed(objects()))
    assert report.ids("imported") == ["first", "made12", "made14"]
    assert (report.ok, report.messages) == (True, sum(line.get("kind") == "message" for line in objects()))
    assert exported(db) == sample()


def test_concurrent_imports_store_each_conversation_once(make_db: MakeDb) -> None:
    one, other, text = make_db(), make_db(), sample()
    reports = conversations.at_once(lambda: imported(one, text), lambda: imported(other, text))
    assert sorted(len(report.ids("imported")) for report in reports) in ([0, 3], [1, 2])
    assert all(report.ok for report in reports)
    assert exported(one).count("sealed") == 3


def test_no_lock_is_held_while_lines_are_read(make_db: MakeDb) -> None:
    db, other = make_db(), make_db()
    conversations.begin(db, "mine", "x")

    def read_slowly() -> Any:
        for row in rows():
            conversations.say(other, "mine", "meanwhile")
            yield row

    assert db.admin.import_from(read_slowly()).ok
    assert len(db.transcript("mine")) == 1 + len(rows())
