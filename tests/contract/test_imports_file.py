"""An import takes in whole conversations or none of them, tells of each, and believes nothing it reads."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import SessionDB, errors
from holdfast.store.transfer import import_
from tests.contract.conftest import MakeDb
from tests.support import conversations
from tests.support.hostile_exports import HOSTILE, fresh, objects, resealed, rows, sample, where
from tests.support.random_histories import exported, imported


@functools.cache
def alone() -> dict[str, str]:
    """Each conversation of the sample as an export of its own."""
    with fresh() as db:
        imported(db, sample())
        return {session.conversation_id: exported(db, session.id) for session in db.list_sessions()}


def assert_nothing_half(db: SessionDB, report: Any) -> None:
    """What is here is just as it was exported; what is not here was told of."""
    assert db.admin.fsck().ok
    here = {session.conversation_id: exported(db, session.id) for session in db.list_sessions()}
    assert here.items() <= alone().items()
    assert here == alone() or not report.ok


def test_the_sample_and_its_resealing_come_in(db: SessionDB) -> None:
    report = imported(db, resealed(objects()))
    assert report.ok
    assert report.ids("imported") == ["first", "made12", "made14"]
    assert exported(db) == sample()
    assert report.messages == sum(line.get("kind") == "message" for line in objects())


# --- what is here already ------------------------------------------------------------------------------


def test_a_conversation_with_other_content_is_a_conflict_and_stays_as_it_is(db: SessionDB) -> None:
    conversations.begin(db, "made14", "something else")
    before = exported(db, "made14")
    report = imported(db, sample())
    (conflict,) = [outcome for outcome in report.outcomes if not outcome.ok]
    assert (conflict.conversation_id, conflict.outcome) == ("made14", "conflict")
    assert isinstance(conflict.error, errors.ImportConflict)
    assert conflict.error.conversation_id == "made14"
    assert exported(db, "made14") == before
    assert report.ids("imported") == ["first", "made12"]


def test_a_conversation_that_went_on_is_a_conflict_from_the_first_difference_on(db: SessionDB) -> None:
    imported(db, sample())
    conversations.say(db, "made14", "more")
    with conversations.nothing_changes(db):
        report = imported(db, sample())
    assert report.ids("already_there") == ["first", "made12"]
    assert [outcome.error.line for outcome in report.outcomes if outcome.error] == [
        1 + where(objects(), "conversation", 2)
    ]


def test_a_title_that_is_taken_is_numbered_and_told_once(db: SessionDB) -> None:
    conversations.begin(db, "mine", "x", title="Title")
    report = imported(db, sample())
    assert report.ok
    assert [outcome.title for outcome in report.outcomes] == ["Title #2", "Title #3", None]
    assert db.conversation("first").title == "Title #2"
    again = imported(db, sample())
    assert again.ids("already_there") == ["first", "made12", "made14"]


def test_a_new_title_and_a_lease_since_then_make_no_conflict(db: SessionDB) -> None:
    imported(db, sample())
    db.set_session_title("first", "Renamed")
    db.acquire_lease("first", "turn")
    assert imported(db, sample()).ok
    assert db.conversation("first").title == "Renamed"


def test_a_session_id_of_another_conversation_is_a_conflict(db: SessionDB) -> None:
    second = next(line["id"] for line in objects() if line.get("kind") == "session" and line["ordinal"] == 2)
    conversations.begin(db, second, "x")
    report = imported(db, sample())
    assert [outcome.outcome for outcome in report.outcomes] == ["conflict", "refused", "imported"]
    assert "first" in str(report.outcomes[1].error)
    assert db.get_session("first") is None


def test_routes_known_here_stay_what_they_are(db: SessionDB) -> None:
    conversations.begin(db, "mine", "x")
    db.bind_route("chat:1", "mine", version=0)
    report = imported(db, sample())
    assert report.outcomes[0].routes == ("chat:1",)
    assert db.route("chat:1").conversation_id == "mine"


def test_a_route_unbound_here_since_then_is_not_bound_again(db: SessionDB) -> None:
    imported(db, sample())
    assert db.route("chat:1").conversation_id == "first"
    db.bind_route("chat:1", None, version=db.route("chat:1").version)
    assert imported(db, sample()).ok
    assert db.route("chat:1").conversation_id is None


# --- what was deleted here -----------------------------------------------------------------------------


def test_what_was_deleted_here_does_not_come_back_by_itself(db: SessionDB) -> None:
    imported(db, sample())
    db.delete_conversation("made14")
    report = imported(db, sample())
    (refused,) = [outcome for outcome in report.outcomes if not outcome.ok]
    assert (refused.conversation_id, refused.outcome) == ("made14", "refused")
    assert isinstance(refused.error, errors.ConversationDeleted)
    assert db.get_session("made14") is None


def test_revived_it_comes_back_under_new_ids_once(db: SessionDB) -> None:
    imported(db, sample())
    for name in ("made12", "first"):
        db.delete_conversation(name)
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


def test_a_new_id_that_would_be_too_long_is_refused(make_db: MakeDb) -> None:
    db, name = make_db(), "x" * 200
    conversations.begin(db, name, "one")
    text = exported(db)
    db.delete_conversation(name)
    report = imported(db, text, revive=True)
    assert isinstance(report.outcomes[0].error, errors.ImportInvalid)
    assert report.ids("refused") == [name]


# --- files that are not whole --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "{}",
        "[]",
        "hello",
        '{"holdfast":"export"}',
        '{"holdfast":"export","version":0}',
        "\ud800",
        "[" * 99_999,
    ],
    ids=conversations.short,
)
def test_what_is_no_export_is_refused_at_its_first_line(db: SessionDB, text: str) -> None:
    with pytest.raises(
        errors.ImportInvalid, match=r"^Line 1: this is not (an export of Holdfast|valid Unicode)\.$"
    ) as refused:
        db.admin.import_from([text] if text else [])
    assert refused.value.line == 1


def test_a_newer_form_asks_for_an_upgrade(db: SessionDB) -> None:
    with pytest.raises(errors.ImportInvalid, match="upgrade Holdfast"):
        imported(db, '{"holdfast":"export","version":2}\n')


def test_a_file_cut_at_any_line_brings_whole_conversations_and_says_so() -> None:
    for length in range(1, len(rows())):
        with fresh() as db:
            report = imported(db, rows()[:length])
            assert not report.ok
            assert report.outcomes[-1].error.line == length
            assert_nothing_half(db, report)


def test_a_file_cut_inside_of_a_line_says_so() -> None:
    for row in range(1, len(rows())):
        with fresh() as db:
            report = imported(db, [*rows()[:row], rows()[row][:-5]])
            assert not report.ok
            assert report.outcomes[-1].error.line == row + 1
            assert_nothing_half(db, report)


CHANGES: dict[str, Callable[[list[str], int, int], None]] = {
    "swapped": lambda lines, one, other: lines.__setitem__(slice(None), _swapped(lines, one, other)),
    "lost": lambda lines, one, _: lines.pop(one) and None,
    "repeated": lambda lines, one, other: lines.insert(other, lines[one]),
    "moved": lambda lines, one, other: lines.insert(other, lines.pop(one)),
    "blank": lambda lines, one, _: lines.insert(one, "\n"),
}


def _swapped(lines: list[str], one: int, other: int) -> list[str]:
    lines[one], lines[other] = lines[other], lines[one]
    return lines


@given(st.sampled_from(sorted(CHANGES)), st.integers(1, 10**6), st.integers(1, 10**6))
def test_lines_in_any_other_order_never_come_in_unnoticed(how: str, one: int, other: int) -> None:
    lines = rows()
    CHANGES[how](lines, 1 + one % (len(lines) - 1), 1 + other % (len(lines) - 1))
    with fresh() as db:
        report = imported(db, lines)
        assert report.ok == (lines == rows())
        assert_nothing_half(db, report)


@given(st.integers(0, 10**9), st.integers(1, 255))
def test_a_changed_byte_never_comes_in_unnoticed(place: int, change: int) -> None:
    data = bytearray(sample().encode())
    start = len(rows()[0])
    data[start + place % (len(data) - start)] ^= change
    with fresh() as db:
        report = db.admin.import_from(io.BytesIO(bytes(data)))
        # What a line ends with is nobody's content.
        assert not report.ok or bytes(data).replace(b"\r", b"\n").strip(b"\n") == sample().encode().strip(b"\n")
        assert_nothing_half(db, report)


@pytest.mark.parametrize("change", ["lost", "added", "turned round"])
def test_whole_conversations_lost_added_or_turned_round_are_told_at_the_end(db: SessionDB, change: str) -> None:
    begins = [where(objects(), "conversation", number) for number in range(3)]
    twig, other = rows()[begins[1] : begins[2]], rows()[begins[2] : -1]
    middle = {"lost": twig, "added": [*twig, *other, *other], "turned round": [*other, *twig]}[change]
    report = imported(db, [*rows()[: begins[1]], *middle, rows()[-1]])
    assert "conversations were lost, added, repeated" in str(report.outcomes[-1].error)
    assert report.outcomes[-1].conversation_id is None
    assert_nothing_half(db, report)


def test_conversations_behind_a_damaged_one_come_in_all_the_same(db: SessionDB) -> None:
    lines = rows()
    lines[5] = "garbage\n"
    report = imported(db, lines)
    assert [(outcome.conversation_id, outcome.outcome) for outcome in report.outcomes[:3]] == [
        ("first", "refused"),
        ("made12", "refused"),
        ("made14", "imported"),
    ]
    assert report.outcomes[0].error.line == 6
    assert str(report.outcomes[0].error) == "Line 6: this is not JSON."


# --- files made to do harm -----------------------------------------------------------------------------


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_line_is_refused_with_its_conversation(what: str) -> None:
    objs: list[Any] = list(objects())
    place = HOSTILE[what](objs)
    with fresh() as db:
        report = imported(db, resealed(objs))
        refused = [outcome for outcome in report.outcomes if not outcome.ok]
        assert refused, "it came in"
        assert isinstance(refused[0].error, errors.ImportInvalid)
        assert place + 1 <= refused[0].error.line <= 1 + where(objs, "sealed", _told_before(objs, place))
        assert_nothing_half(db, report)


def _told_before(objs: list[Any], place: int) -> int:
    return sum(isinstance(line, dict) and line.get("kind") == "sealed" for line in objs[:place])


_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 12), st.just(2**62), st.just(2**63), st.text(max_size=3), st.floats(-1, 3)
)


@given(st.integers(1, 10**6), st.integers(0, 10**6), _VALUES)
def test_whatever_a_resealed_file_says_the_promises_hold(line: int, field: int, value: Any) -> None:
    objs = objects()
    chosen = objs[1 + line % (len(objs) - 1)]
    chosen[sorted(chosen)[field % len(chosen)]] = value
    with fresh() as db:
        try:
            report = imported(db, resealed(objs))
        except errors.HoldfastError as error:
            raise AssertionError("it should be in the report") from error
        assert report.outcomes
        assert db.admin.fsck().ok
        for session in db.list_sessions(limit=100):
            conversations.seen(db, session.id)
            db.append_message(session.id, role="user", content="next")


def test_a_compaction_made_without_what_is_shown_since_is_refused(db: SessionDB) -> None:
    objs = objects()
    shown = where(objs, "stand")
    # As if the undo before the show had never been.
    del objs[shown]
    objs[where(objs, "compaction", 1)]["base_epoch"] = 3
    report = imported(db, resealed(objs))
    assert "a compaction covers messages that it was made without" in str(report.outcomes[0].error)


# --- files of a newer version --------------------------------------------------------------------------

ADDED = [
    '{"content":"x","new":1}',
    '{"content":"x","new":{"b":[1,2.5,null],"a":"é"}}',
    '{"content":"","new":1}',
    '{"new":1}',
    '{"tool_calls":[{"id":"1","name":"ls","new":true}],"content":"x"}',
    '{"tool_calls":[{"id":"1"}],"tool_call_id":"1","new":[]}',
]


NOT_ADDED = {
    "calls that are hidden": '{"new":1,"tool_calls":[{"id":"1"}]}',
    "other words for it": '{"content":"x","new": 1}',
    "the same key twice": '{"content":"x","new":1,"new":2}',
    "another number": '{"content":"x","new":1.0e0}',
    "too deep": f'{{"content":"x","new":{"[" * 110 + "]" * 110}}}',
    "a body no append would write": '{"content":"x","tool_calls":[],"new":1}',
    "content that is none": '{"content":7,"new":1}',
    "a call without an id": '{"tool_calls":[{"id":"","new":1}]}',
}


def saying(body: str) -> tuple[str, int]:
    """The sample, with another body where `alone` was said; and the line it stands at."""
    told = rows()
    (place,) = (number for number, row in enumerate(told) if '{"content":"alone"}' in row)
    changed = told[place].strip().replace('{"content":"alone"}', body)
    return resealed([*objects()[:place], changed, *objects()[place + 1 :]]), place + 1


@pytest.mark.parametrize("body", [*ADDED, *NOT_ADDED.values()])
def test_body_with_keys_of_a_newer_version_is_refused_at_its_line(db: SessionDB, body: str) -> None:
    text, line = saying(body)
    report = imported(db, text)
    assert report.ids("imported") == ["first", "made12"]
    assert [(outcome.conversation_id, outcome.line) for outcome in report.outcomes if not outcome.ok] == [
        ("made14", line)
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"new": 1}, "this line has an unknown field 'new'; upgrade Holdfast if a newer version wrote it."),
        ({"kind": "new"}, "this line is of an unknown kind; upgrade Holdfast if a newer version wrote it."),
    ],
    ids=["a field", "a kind"],
)
def test_what_a_newer_version_added_to_the_lines_is_refused_and_never_dropped(
    db: SessionDB, change: dict[str, Any], said: str
) -> None:
    objs = objects()
    place = where(objs, "message", 1)
    objs[place] |= change
    report = imported(db, resealed(objs))
    assert str(report.outcomes[0].error) == f"Line {place + 1}: {said}"
    assert report.ids("imported") == ["made14"]


# --- where lines come from -----------------------------------------------------------------------------


def test_text_bytes_and_lists_of_lines_are_the_same(make_db: MakeDb, tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    path.write_text(sample(), "utf-8")
    with path.open("rb") as binary, path.open(encoding="utf-8") as text:
        for name, source in (("a", binary), ("b", text), ("c", rows()), ("d", (row.encode() for row in rows()))):
            db = make_db(name)
            assert db.admin.import_from(source).ok
            assert exported(db) == sample()


def test_line_ends_of_other_systems_do_not_matter(db: SessionDB) -> None:
    assert imported(db, sample().replace("\n", "\r\n")).ok


def test_a_text_file_in_another_encoding_is_told_of(db: SessionDB, tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    path.write_bytes(sample().encode().replace(b"alone", b"al\xffne"))
    with path.open(encoding="utf-8") as file, pytest.raises(errors.ImportInvalid, match="not valid UTF-8"):
        db.admin.import_from(file)
    assert db.list_sessions() == []


def test_bytes_that_are_no_text_are_refused_with_their_conversation(db: SessionDB) -> None:
    data = sample().encode().replace(b"alone", b"al\xffne")
    report = db.admin.import_from(io.BytesIO(data))
    assert report.ids("imported") == ["first", "made12"]
    assert report.outcomes[-1].error.line == 1 + data[: data.index(b"\xff")].count(b"\n")
    assert_nothing_half(db, report)


def test_a_line_longer_than_any_is_refused_and_skipped(db: SessionDB, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_, "MAX_LINE_BYTES", 1000)
    lines = rows()
    lines[4] = "x" * 10_000 + "\n"
    report = imported(db, lines)
    assert str(report.outcomes[0].error) == "Line 5: this line is longer than 1,000 bytes."
    assert report.ids("imported") == ["made14"]


@pytest.mark.parametrize("read", [None, 7, "text", b"bytes"], ids=conversations.short)
def test_what_gives_no_lines_is_refused(db: SessionDB, read: Any) -> None:
    with pytest.raises(errors.InvalidArgument):
        db.admin.import_from(read)


@pytest.mark.parametrize("line", [None, 7, ["x"]], ids=conversations.short)
def test_what_is_no_line_is_refused(db: SessionDB, line: Any) -> None:
    report = db.admin.import_from([*rows()[:4], line, *rows()[5:]])
    assert "neither text nor bytes" in str(report.outcomes[0].error)


def test_a_conversation_too_long_for_memory_comes_in_the_same(db: SessionDB, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_, "MAX_MEMORY_BYTES", 500)
    assert imported(db, sample()).ok
    assert exported(db) == sample()


def test_progress_tells_messages_and_lines(make_db: MakeDb) -> None:
    db, other = make_db(), make_db("other")
    db.create_session("long", source="test")
    db.append_messages("long", [{"role": "user", "content": str(number)} for number in range(2500)])
    seen: list[tuple[int, int]] = []
    imported(other, exported(db), progress=lambda *at: seen.append(at))
    assert seen == [(0, 1000), (0, 2000)]


def test_two_imports_at_once_bring_it_once(make_db: MakeDb) -> None:
    one, other, told = make_db(), make_db(), sample()
    reports = conversations.at_once(lambda: imported(one, told), lambda: imported(other, told))
    assert sorted(len(report.ids("imported")) for report in reports) in ([0, 3], [1, 2])
    assert all(report.ok for report in reports)
    assert exported(make_db()).count("sealed") == 3


def test_nothing_is_locked_while_lines_are_read(make_db: MakeDb) -> None:
    db, other = make_db(), make_db()
    conversations.begin(db, "mine", "x")

    def slow() -> Any:
        for row in rows():
            conversations.say(other, "mine", "meanwhile")
            yield row

    assert db.admin.import_from(slow()).ok
    assert len(db.transcript("mine")) == 1 + len(rows())
