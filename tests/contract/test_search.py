"""Search: what was said is found by what it means, only where the asker may look, and never stops a write."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import NewConversation, SessionDB, content_parts, errors, types
from holdfast.store.search import indexer
from tests.contract.conftest import MakeDb
from tests.support import conversations


def _told(db: SessionDB, *contents: str, **new: object) -> str:
    first = db.append_message(None, role="user", content=contents[0], create=NewConversation(source="test", **new))
    for content in contents[1:]:
        db.append_message(first.conversation_id, role="user", content=content)
    return first.conversation_id


def _seqs(hits: list[types.Hit]) -> list[int]:
    return [hit.seq for hit in hits]


def test_a_question_in_plain_language_finds_the_answer_in_other_forms_of_its_words(db: SessionDB) -> None:
    _told(db, "We talked about the weather.", "The passports are in the blue drawer.", "Trains run hourly.")
    assert _seqs(db.search("where did I put my passport?"))[0] == 2


def test_a_hit_says_where_it_stands_and_shows_the_stretch_that_fits(db: SessionDB) -> None:
    chat = _told(db, "filler " * 200 + "the secret harbour is Porto " + "filler " * 200)
    (hit,) = db.search("harbour")
    assert (hit.session_id, hit.conversation_id, hit.seq, hit.role) == (chat, chat, 1, "user")
    assert "harbour is Porto" in hit.snippet
    assert len(hit.snippet) <= 170
    assert hit.content.startswith("filler")
    assert hit.score > 0


def test_a_message_is_found_as_soon_as_its_append_returned(db: SessionDB) -> None:
    chat = _told(db, "one zebra")
    assert _seqs(db.search("zebra")) == [1]
    db.append_message(chat, role="user", content="another zebra")
    assert sorted(_seqs(db.search("zebra"))) == [1, 2]


def test_with_own_words_only_neighbours_lend_a_message_nothing(db: SessionDB) -> None:
    _told(db, "Good morning.", "The passports are in the drawer.", "Thank you.")
    assert sorted(_seqs(db.search("passport"))) == [1, 2, 3]
    assert _seqs(db.search("passport", own=True)) == [2]


def test_a_phrase_in_quotes_must_be_there(db: SessionDB) -> None:
    _told(db, "the blue old drawer", "the old blue drawer", "nothing of the kind")
    assert _seqs(db.search('"blue drawer"')) == [2]
    assert db.search('"drawer blue"') == []


def test_rarer_words_weigh_more(db: SessionDB) -> None:
    _told(db, "server server server restart", "server and the gasket", "server logs", "server disk", "server fan")
    assert _seqs(db.search("server gasket"))[0] == 2


def test_words_that_stand_together_weigh_more_than_words_far_apart(db: SessionDB) -> None:
    filler = " ".join(f"w{n}" for n in range(40))
    _told(db, f"budget {filler} kitchen", f"{filler} kitchen budget", f"{filler} other things")
    assert _seqs(db.search("kitchen budget"))[0] == 2


def test_a_short_answer_is_found_by_the_question_before_it(db: SessionDB) -> None:
    _told(db, "Which boiler did the plumber recommend?", "The Vanto 24.", "Fine weather today.", "Indeed it is.")
    assert 2 in _seqs(db.search("boiler recommended by the plumber"))[:2]


def test_a_short_answer_comes_before_messages_that_share_one_word_with_the_question(db: SessionDB) -> None:
    other = ["Something else was said."] * 10
    rang = [f"The plumber rang on {day} about a leaking tap in the cellar." for day in ("Monday", "Friday")]
    _told(db, "Which boiler did the plumber recommend?", "The Vanto 24.", *other, *rang, *other)
    assert _seqs(db.search("boiler recommended by the plumber"))[:2] == [1, 2]


def test_a_short_answer_is_found_by_the_role_that_gave_it(db: SessionDB) -> None:
    chat = _told(db, "Which boiler did the plumber recommend?")
    db.append_message(chat, role="assistant", content="The Vanto 24.")
    assert _seqs(db.search("plumber", role="assistant")) == [2]
    assert _seqs(db.search("plumber", role="assistant", session_id=chat)) == [2]


def test_people_come_before_assistants_tools_and_instructions(db: SessionDB) -> None:
    roles: tuple[types.Role, ...] = ("system", "tool", "assistant", "user")
    for role in roles:
        new = NewConversation(source="test")
        db.append_message(None, role=role, content="the ibex is grey", create=new)
    assert [hit.role for hit in db.search("ibex")] == ["user", "assistant", "tool", "system"]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("我们明天去东京塔看风景", "东京"),
        ("我们明天去东京塔看风景", "塔"),
        ("我们明天去东京塔看风景", '"东"'),
        ("我们明天去东京塔看风景", '"景"'),
        ("Tokyo 红叶 festival", '"Tokyo 红"'),
        ("Tokyo 红叶 festival", '"红叶 festival"'),
        ("Tokyo 红叶 festival", '"叶 festival"'),
        ("私は来週京都に行きます", "京都"),
        ("ฉันชอบกินข้าวผัด", "ข้าวผัด"),
        ("내일 서울에서 만나요", "서울"),
        ("Das Passwort liegt im Schränkchen", "schrankchen"),
        ("Встреча в четверг", "четверг"),
    ],
)
def test_every_script_is_searched(db: SessionDB, text: str, query: str) -> None:
    _told(db, "something else altogether", text, "and more of it")
    assert _seqs(db.search(query))[0] == 2


def test_a_mark_that_repeats_a_character_belongs_to_its_word(db: SessionDB) -> None:
    right = _told(db, "佐々木さんが来る")
    _told(db, "佐藤さんは木曜日に来る")
    assert [hit.conversation_id for hit in db.search("佐々木")] == [right]


@pytest.mark.parametrize("query", ['"京東"', '"Tokyo 叶"', '"红 festival"', '"红叶 Tokyo"'])
def test_a_phrase_of_an_unspaced_script_must_be_there(db: SessionDB, query: str) -> None:
    _told(db, "东京塔", "Tokyo 红叶 festival")
    assert db.search(query) == []


def test_common_words_alone_are_searched_when_there_are_no_others(db: SessionDB) -> None:
    _told(db, "to be or not to be", "nothing here")
    assert _seqs(db.search("to be"))[0] == 1


@pytest.mark.parametrize("query", ["", "   ", "?!…", '""', '"   "', "\0\x1b[31m", "\ud800"])
def test_a_question_without_a_word_finds_nothing(db: SessionDB, query: str) -> None:
    _told(db, "something")
    assert db.search(query) == []


@pytest.mark.parametrize(
    "query",
    [
        '" OR 1 --',
        "a AND (b",
        "NEAR(",
        "text:x",
        "tags : r",
        "* ^ -",
        "{text} : x",
        "col:" * 50,
        '"unbalanced',
        "x" * 9999,
    ],
)
def test_nothing_in_a_question_is_read_as_syntax(db: SessionDB, query: str) -> None:
    _told(db, "plain text")
    assert isinstance(db.search(query), list)


def test_a_search_is_limited_to_a_conversation_its_origins_included(db: SessionDB) -> None:
    chat = _told(db, "the walrus one", "the walrus two", "the walrus three")
    _told(db, "the walrus elsewhere")
    branch = db.branch(chat, 2).id
    db.append_message(branch, role="user", content="the walrus in the branch")
    hits = db.search("walrus", session_id=branch)
    assert sorted((hit.conversation_id == branch, hit.seq) for hit in hits) == [(False, 1), (False, 2), (True, 3)]
    assert sorted(_seqs(db.search("walrus", session_id=chat))) == [1, 2, 3]


def test_an_old_session_id_searches_the_whole_conversation(db: SessionDB) -> None:
    chat = _told(db, "an otter before")
    lease = db.acquire_lease(chat, "compact")
    db.commit_compaction(lease, summary="s", cut_seq=1)
    db.append_message(chat, role="user", content="an otter after")
    assert sorted(_seqs(db.search("otter", session_id=chat))) == [1, 2]


def test_filters_by_role_tool_time_and_owner(db: SessionDB, clock: conversations.Clock) -> None:
    anna, ben = _told(db, "the lynx", owner="anna"), _told(db, "the lynx", owner="ben")
    clock.now += 100
    middle = clock.now
    calls = [{"id": "c1", "name": "read_file", "arguments": {"path": "lynx.txt"}}]
    db.append_message(anna, role="assistant", tool_calls=calls)
    db.append_message(anna, role="tool", content="lynx lines", tool_call_id="c1")
    db.append_message(anna, role="tool", content="lynx of another tool", tool_call_id="c2")
    assert {hit.conversation_id for hit in db.search("lynx", owner="ben")} == {ben}
    assert _seqs(db.search("lynx", role="assistant")) == [2]
    assert sorted(_seqs(db.search("lynx", tool="read_file"))) == [2, 3]
    assert sorted(_seqs(db.search("lynx", after=middle))) == [2, 3, 4]
    assert {hit.conversation_id for hit in db.search("lynx", before=middle)} == {anna, ben}
    assert db.search("lynx", owner="nobody") == []


def test_a_filter_that_leaves_few_still_finds_them_all(db: SessionDB, clock: conversations.Clock) -> None:
    chat = _told(db, "ferret")
    db.append_messages(chat, [{"role": "user", "content": "ferret"}] * 599)
    clock.now += 10
    db.append_message(chat, role="user", content="the last ferret of a very long day with many other words in it")
    assert _seqs(db.search("ferret", after=clock.now)) == [601]


def test_every_message_that_fits_is_found_in_however_many_conversations(
    db: SessionDB, clock: conversations.Clock
) -> None:
    chats = [_told(db, "the invoice is paid") for _ in range(130)]
    clock.now += 10
    late = {_told(db, f"an invoice came and {'many other things were said of it ' * 3}") for _ in range(2)}
    assert [len(db.search("invoice", limit=limit)) for limit in (10, 30, 50, 1000)] == [10, 30, 50, 132]
    assert {hit.conversation_id for hit in db.search("invoice", after=clock.now)} == late
    assert {hit.conversation_id for hit in db.search("invoice", before=clock.now, limit=1000)} == set(chats)


def test_a_tool_used_once_is_found_below_many_better_matches(db: SessionDB) -> None:
    chat = _told(db, *["stoat stoat"] * 100)
    calls = [{"id": "c1", "name": "weigh", "arguments": {"what": "a stoat among many other animals of the forest"}}]
    db.append_message(chat, role="assistant", tool_calls=calls)
    _told(db, *["stoat stoat"] * 100)
    assert _seqs(db.search("stoat", tool="weigh")) == [101]


def test_neighbours_of_a_hit_come_with_it(db: SessionDB) -> None:
    _told(db, "first", "second", "the kestrel", "fourth")
    (hit,) = [hit for hit in db.search("kestrel", neighbours=2) if hit.seq == 3]
    assert [message.content for message in hit.before] == ["first", "second"]
    assert [message.content for message in hit.after] == ["fourth"]


def test_what_was_redacted_or_deleted_is_not_found(db: SessionDB) -> None:
    chat = _told(db, "nothing", "the code is heron", "nothing either", "the code again: heron")
    other = _told(db, "heron")
    assert len(db.search("heron")) >= 3
    db.redact(chat, 2)
    assert (chat, 2) not in [(hit.conversation_id, hit.seq) for hit in db.search("heron")]
    db.redact(chat, 4)
    db.delete_conversation(other)
    assert db.search("heron") == []


def test_a_search_on_an_unknown_session_is_refused(db: SessionDB) -> None:
    with pytest.raises(errors.NoSuchSession):
        db.search("x", session_id="nowhere")


@pytest.mark.parametrize(
    "wrong",
    [
        {"query": None},
        {"query": "x" * 10_001},
        {"limit": -1},
        {"limit": True},
        {"limit": "3"},
        {"neighbours": 99},
        {"role": "king"},
        {"tool": 3},
        {"owner": b"x"},
        {"after": "yesterday"},
    ],
)
def test_bad_input_is_refused(db: SessionDB, wrong: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidArgument):
        db.search(**{"query": "x", **wrong})


def test_an_append_does_not_touch_the_index(make_db: MakeDb, at_point: object) -> None:
    db = make_db()
    chat = _told(db, "before")
    db.search("before")
    seen: list[str] = []
    at_point(seen.append)
    db.append_message(chat, role="user", content="after")
    assert seen
    assert not [point for point in seen if point.startswith(("index", "forget", "state"))]


def test_two_handles_index_one_store_together(make_db: MakeDb) -> None:
    one, two = make_db(), make_db()
    chat = _told(one, *[f"gull number {n}" for n in range(50)])
    assert len(one.search("gull", limit=100)) == len(two.search("gull", limit=100)) == 50
    two.append_message(chat, role="user", content="gull of the other")
    assert len(one.search("gull", limit=100)) == len(two.search("gull", limit=100)) == 51


def test_rebuilding_finds_the_same(db: SessionDB) -> None:
    chat = _told(db, *[f"swift {n} flies" for n in range(30)])
    before = db.search("swift flies", session_id=chat)
    assert db.admin.rebuild_search_index() == 30
    assert db.search("swift flies", session_id=chat) == before
    assert db.admin.update_search_index() == 0


def test_nothing_is_said_of_a_healthy_index(db: SessionDB, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        _told(db, "a quiet owl")
        db.search("owl")
    assert not caplog.records


def test_a_note_for_the_model_is_not_found_and_the_mark_of_a_cut_is(db: SessionDB) -> None:
    chat = _told(db, "opening")
    said = {"type": "text", "text": "My train leaves at noon."}
    db.append_message(chat, role="user", content=[content_parts.note("It is Sunday."), said])
    db.append_message(chat, role="assistant", content=[said, content_parts.cut("The answer broke off here.")])
    assert db.search("Sunday") == []
    assert 3 in _seqs(db.search("broke"))
    assert db.search("train", role="user")[0].content == "My train leaves at noon."


def test_what_another_indexed_between_two_looks_stays_indexed(
    make_db: MakeDb, at_point: Callable[[Callable[[str], None]], None]
) -> None:
    one, two = make_db(), make_db()
    chat, read = _told(one, "first words"), one.driver.read
    one.search("first")
    reached = ["nothing"]
    at_point(reached.append)
    after, looks = 0, 1

    def look(*step: Any) -> Any:
        nonlocal looks
        found, looks = read(*step), looks + 1
        # While the index is locked nobody else brings it on.
        if looks == after and not reached[-1].startswith("index.begun"):
            _told(two, "zebra crossing")
            two.search("zebra")
        return found

    while after < looks:
        after, looks = after + 1, 0
        one.append_message(chat, role="user", content="so that there is something to do")
        one.driver.read = look
        one.search("first")
        one.driver.read = read
        # Facts, and no search: that would put right what went wrong.
        assert two.admin.search_status()["behind"] == 0, after
    assert after > 5


def test_texts_are_cut_bit_by_bit_and_not_while_the_index_is_locked(
    db: SessionDB, at_point: Callable[[Callable[[str], None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[str] = []
    dialect = db.searcher._dialect
    cut = dialect.index_text

    def spied(text: str) -> object:
        assert not reached or reached[-1].endswith((".committed", ".queued")), reached[-1]
        return cut(text)

    monkeypatch.setattr(dialect, "index_text", spied)
    monkeypatch.setattr(indexer, "MAX_BATCH_BYTES", 3_000)
    chat = _told(db, *[f"gull {n} " * 150 for n in range(6)])
    at_point(reached.append)
    assert db.admin.update_search_index() == 6
    assert reached.count("index.committed") == 3
    db.redact(chat, 3)
    assert reached[-1] == "forget.committed"
    assert sorted(_seqs(db.search("gull", own=True))) == [1, 2, 4, 5, 6]
