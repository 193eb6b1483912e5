"""Search: ranked results in every script, limited to the given conversation and owner, and no cost for writes."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from holdfast import NewConversation, SessionDB, content_parts, types
from tests.support import conversations
from tests.support.backends import AtPoint, MakeDb
from tests.support.conversations import Clock


def begin(db: SessionDB, *contents: str, **new: object) -> str:
    first = db.append_message(None, role="user", content=contents[0], create=NewConversation(source="test", **new))
    db.append_messages(first.conversation_id, [{"role": "user", "content": content} for content in contents[1:]])
    return first.conversation_id


def seqs(hits: list[types.Hit]) -> list[int]:
    return [hit.seq for hit in hits]


def test_hit_names_its_place_and_has_the_matching_snippet(db: SessionDB) -> None:
    chat = begin(db, "filler " * 200 + "the secret harbour is Porto " + "filler " * 200, "second", "third")
    (hit,) = db.search("harbour", own=True, neighbours=1)
    assert (hit.session_id, hit.conversation_id, hit.seq, hit.role) == (chat, chat, 1, "user")
    assert "harbour is Porto" in hit.snippet
    assert len(hit.snippet) <= 170
    assert hit.content.startswith("filler")
    assert hit.score > 0
    assert (hit.before, conversations.contents(hit.after)) == ((), ["second"])
    db.append_message(chat, role="user", content="another harbour")
    assert sorted(seqs(db.search("harbour", own=True))) == [1, 4], "found as soon as its append returned"


FILLER = " ".join(f"w{n}" for n in range(40))
RANKINGS: dict[str, tuple[list[str], str, list[int]]] = {
    "other forms of the words": (["The weather is fine.", "The passports are in it."], "where is my passport?", [2]),
    "rare words weigh more": (["server server server", "server gasket", "server", "server fan"], "server gasket", [2]),
    "words close together": ([f"budget {FILLER} kitchen", f"{FILLER} kitchen budget"], "kitchen budget", [2]),
    "a short answer is found by its question": (
        [
            "Which boiler did the plumber recommend?",
            "The Vanto 24.",
            *["Something else was said."] * 10,
            *(f"The plumber rang on {day} about a leaking tap in the cellar." for day in ("Monday", "Friday")),
            *["Something else was said."] * 10,
        ],
        "boiler recommended by the plumber",
        [1, 2],
    ),
    "common words only": (["to be or not to be", "nothing here"], "to be", [1]),
}


@pytest.mark.parametrize("what", RANKINGS)
def test_best_matches_are_first(db: SessionDB, what: str) -> None:
    contents, query, best = RANKINGS[what]
    begin(db, *contents)
    assert seqs(db.search(query))[: len(best)] == best


def test_messages_of_users_are_before_assistants_tools_and_instructions(db: SessionDB) -> None:
    roles: tuple[types.Role, ...] = ("system", "tool", "assistant", "user")
    for role in roles:
        db.append_message(None, role=role, content="the ibex is grey", create=NewConversation(source="test"))
    assert [hit.role for hit in db.search("ibex")] == ["user", "assistant", "tool", "system"]


def test_neighbours_lend_a_message_their_words_unless_own_words_are_asked_for(db: SessionDB) -> None:
    chat = begin(db, "Good morning.", "The passports are in the drawer.", "Thank you.")
    assert sorted(seqs(db.search("passport"))) == [1, 2, 3]
    assert seqs(db.search("passport", own=True)) == [2]
    db.append_message(chat, role="user", content="Which boiler did the plumber recommend?")
    db.append_message(chat, role="assistant", content="The Vanto 24.")
    for where in (None, chat):
        assert seqs(db.search("plumber", role="assistant", session_id=where)) == [5]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("the old blue drawer", '"blue drawer"'),
        ("我们明天去东京塔看风景", "东京"),
        ("我们明天去东京塔看风景", "塔"),
        ("我们明天去东京塔看风景", '"景"'),
        ("Tokyo 红叶 festival", '"Tokyo 红"'),
        ("Tokyo 红叶 festival", '"叶 festival"'),
        ("私は来週京都に行きます", "京都"),
        ("ฉันชอบกินข้าวผัด", "ข้าวผัด"),
        ("내일 서울에서 만나요", "서울"),
        ("Das Passwort liegt im Schränkchen", "schrankchen"),
        ("Встреча в четверг", "четверг"),
        ("佐々木さんが来る", "佐々木"),
    ],
)
def test_words_and_phrases_of_every_script_are_found(db: SessionDB, text: str, query: str) -> None:
    begin(db, "the blue old drawer", "佐藤さんは木曜日に来る", text, "and more of it")
    assert seqs(db.search(query, own=True)) == [3]


@pytest.mark.parametrize(
    "query",
    ["", "   ", "?!…", '""', '"   "', "\0\x1b[31m", "\ud800", '"drawer blue"', '"京東"', '"Tokyo 叶"', '"红 festival"'],
)
def test_query_without_a_word_or_with_another_phrase_finds_nothing(db: SessionDB, query: str) -> None:
    begin(db, "the blue drawer", "东京塔", "Tokyo 红叶 festival")
    assert db.search(query) == []


def test_search_is_limited_to_a_conversation_and_its_origins(db: SessionDB) -> None:
    chat = begin(db, "the walrus one", "the walrus two")
    conversations.compact(db, chat, 1)
    db.append_message(chat, role="user", content="the walrus three")
    begin(db, "the walrus elsewhere")
    branch = db.branch(chat, 2).id
    db.append_message(branch, role="user", content="the walrus in the branch")
    hits = db.search("walrus", session_id=branch)
    assert sorted((hit.conversation_id == branch, hit.seq) for hit in hits) == [(False, 1), (False, 2), (True, 3)]
    assert sorted(seqs(db.search("walrus", session_id=chat))) == [1, 2, 3]


def test_search_is_filtered_by_role_tool_time_and_owner(db: SessionDB, clock: Clock) -> None:
    anna, ben = begin(db, "the lynx", owner="anna"), begin(db, "the lynx", owner="ben")
    clock.now += 100
    middle = clock.now
    calls = [{"id": "c1", "name": "read_file", "arguments": {"path": "lynx.txt"}}]
    db.append_message(anna, role="assistant", tool_calls=calls)
    db.append_message(anna, role="tool", content="lynx lines", tool_call_id="c1")
    db.append_message(anna, role="tool", content="lynx of another tool", tool_call_id="c2")
    assert {hit.conversation_id for hit in db.search("lynx", owner="ben")} == {ben}
    assert seqs(db.search("lynx", role="assistant")) == [2]
    assert sorted(seqs(db.search("lynx", tool="read_file"))) == [2, 3]
    assert sorted(seqs(db.search("lynx", after=middle))) == [2, 3, 4]
    assert {(hit.conversation_id, hit.seq) for hit in db.search("lynx", before=middle)} == {(anna, 1), (ben, 1)}
    assert db.search("lynx", owner="nobody") == []


def test_filter_finds_all_below_many_better_matches(db: SessionDB, clock: Clock) -> None:
    chat = begin(db, *["ferret ferret"] * 600)
    for _ in range(130):
        begin(db, "ferret ferret")
    clock.now += 10
    calls = [{"id": "c1", "name": "weigh", "arguments": {"what": "a ferret among many other animals of the forest"}}]
    db.append_message(chat, role="assistant", tool_calls=calls)
    late = begin(db, f"a ferret came and {'many other things were said of it ' * 3}")
    assert seqs(db.search("ferret", tool="weigh")) == [601]
    assert {(hit.conversation_id, hit.seq) for hit in db.search("ferret", after=clock.now)} == {(chat, 601), (late, 1)}
    assert [len(db.search("ferret", limit=limit)) for limit in (10, 50, 1000)] == [10, 50, 732]
    db.append_message(late, role="user", content="next to it")
    own = db.search("ferret", after=clock.now, own=True)
    assert {(hit.conversation_id, hit.seq) for hit in own} == {(chat, 601), (late, 1)}


def test_redacted_or_deleted_text_and_notes_for_the_model_are_not_found(db: SessionDB) -> None:
    chat = begin(db, "nothing", "the code is heron", "nothing either", "the code again: heron")
    other = begin(db, "heron")
    assert len(db.search("heron")) >= 3
    db.redact(chat, 2)
    assert (chat, 2) not in [(hit.conversation_id, hit.seq) for hit in db.search("heron")]
    db.redact(chat, 4)
    db.delete_conversation(other)
    assert db.search("heron") == []
    said = {"type": "text", "text": "My train leaves at noon."}
    db.append_message(chat, role="user", content=[content_parts.note("It is Sunday."), said])
    db.append_message(chat, role="assistant", content=[said, content_parts.cut("The answer broke off here.")])
    assert db.search("Sunday") == []
    assert 6 in seqs(db.search("broke"))
    assert db.search("train", role="user")[0].content == "My train leaves at noon."


def test_append_does_not_touch_the_index_and_a_rebuild_finds_the_same(
    db: SessionDB, at_point: AtPoint, caplog: pytest.LogCaptureFixture
) -> None:
    chat = begin(db, *[f"swift {n} flies" for n in range(29)])
    db.search("swift")
    points: list[str] = []
    at_point(points.append)
    db.append_message(chat, role="user", content="swift 29 flies")
    at_point(None)
    assert points
    assert not [point for point in points if point.startswith(("index", "forget", "state"))]
    with caplog.at_level(logging.WARNING):
        before = db.search("swift flies", session_id=chat)
        assert db.admin.rebuild_search_index() == 30
        assert db.search("swift flies", session_id=chat) == before
        assert db.admin.update_search_index() == 0
    assert not caplog.records


def test_messages_that_another_process_indexed_meanwhile_stay_indexed(make_db: MakeDb, at_point: AtPoint) -> None:
    one, two = make_db(), make_db()
    chat, read = begin(one, "first words"), one.driver.read
    assert len(one.search("first")) == len(two.search("first")) == 1
    reached = ["nothing"]
    at_point(reached.append)
    after, reads = 0, 1

    def read_and_interfere(*step: Any) -> Any:
        nonlocal reads
        found, reads = read(*step), reads + 1
        # While the index is locked, no other process updates it.
        if reads == after and not reached[-1].startswith("index.begun"):
            begin(two, "zebra crossing")
            two.search("zebra")
        return found

    while after < reads:
        after, reads = after + 1, 0
        one.append_message(chat, role="user", content="to be indexed")
        one.driver.read = read_and_interfere
        one.search("first")
        one.driver.read = read
        # The status, and no search: a search would repair the index.
        assert two.admin.search_status()["behind"] == 0, after
    assert after > 5
