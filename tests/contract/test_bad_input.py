"""Whatever is given comes back exactly, or is refused by an error of ours with nothing half-written."""

from __future__ import annotations

import datetime
import enum
import operator
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import NewConversation, NewMessage, SessionDB, errors, types
from tests.support import backends, consistency, conversations, facets, mail
from tests.support.invalid_arguments import CALLS, JUNK, Arguments, refused

pytestmark = pytest.mark.parametrize("db", backends.DRIVERS, ids=lambda backend: backend.name, indirect=True)


def some(db: SessionDB, place: int) -> list[Any]:
    """All of it; on a server, where each look takes long, every third, others for each argument."""
    return JUNK[place % 3 :: 3] if db.driver.name == "postgres" else JUNK


def fill(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    conversations.compact(db, "talk", 1)
    db.hide("talk", 3)
    conversations.act(db, "talk")


@pytest.mark.parametrize("call", CALLS)
def test_nonsense_is_refused_with_an_error_of_ours_or_harmless(db: SessionDB, call: str) -> None:
    fill(db)
    given = CALLS[call]
    good = given(db) if callable(given) else given
    before = consistency.rows(db)
    for name, junk in ((name, junk) for place, name in enumerate(good) for junk in some(db, place)):
        if callable(junk) and callable(good[name]):
            continue  # what a function raises is its own
        refusal = refused(lambda name=name, junk=junk: operator.attrgetter(call)(db)(**{**good, name: junk}))
        after = consistency.rows(db)
        # That a code was wrong is written down: they are counted.
        assert refusal is None or isinstance(refusal, errors.PairingRefused) or after == before, (name, junk)
        assert len(str(refusal)) < 400, (name, junk)
        before = after
    assert db.get_session("talk")


def test_the_sweep_calls_every_public_method(db: SessionDB) -> None:
    without_arguments = {"close", "leases", "mail.chat_leases", "mail.counts", "mail.unsent_counts"}
    admin = (
        "info status count_messages fsck schema_faults repair_schema prune_empty_sessions run_upkeep_once scrub shrink"
    )
    admin += " free_stale_leases unscrubbed_since update_search_index rebuild_search_index search_status"
    admin += " is_unfinished_copy check_restorable"
    # These take paths, stores, or names of the server, and junk would become files: see the tests of each.
    admin += " backup check_backup restore backup_if_due backup_made_at plan_prune prune copy_to allow_role"
    admin += " get_or_set_profile"
    with_files = {"blobs.put"} | {f"admin.{name}" for name in admin.split()}
    assert facets.calls() - without_arguments - with_files == set(CALLS)


FIELDS = ("role", "content", "uid", "tool_calls", "tool_call_id", "at", "metadata")


@pytest.mark.parametrize("field", FIELDS)
def test_nonsense_in_a_message_of_a_batch_is_refused_or_comes_back(db: SessionDB, field: str) -> None:
    conversations.begin(db, "talk")
    for number, junk in enumerate(JUNK):
        good: Arguments = {"role": "user", "content": "x", "uid": f"u{number}"}
        try:
            (receipt,) = db.append_messages("talk", [{**good, field: junk}])
        except errors.HoldfastError:
            continue
        kept = getattr(db.transcript("talk", after=receipt.seq - 1)[0], field)
        # A list may be given as any sequence, and nothing as anything empty.
        assert kept == junk or (not junk and not kept) or (field in ("uid", "at") and junk is None), (field, junk, kept)


@pytest.mark.parametrize("field", types.NewInboundMessage.__struct_fields__)
def test_nonsense_in_what_arrives_is_refused_or_comes_back(db: SessionDB, field: str) -> None:
    for number, junk in enumerate(JUNK):
        before = consistency.rows(db)
        try:
            arrival, _ = db.mail.add_inbound(mail.new(**{"key": f"k{number}", field: junk}))
        except errors.HoldfastError:
            assert consistency.rows(db) == before, (field, junk)
            continue
        kept = getattr(arrival, field)
        assert kept == junk or (field in ("home", "at") and junk is None), (field, junk, kept)
        assert db.mail.inbound(arrival.id) == arrival


@pytest.mark.parametrize("field", types.NewOutgoing.__struct_fields__)
def test_nonsense_in_what_goes_out_is_refused_or_comes_back(db: SessionDB, field: str) -> None:
    for junk in JUNK:
        before = consistency.rows(db)
        try:
            outgoing = db.mail.post(mail.reply(**{field: junk}))
        except errors.HoldfastError:
            assert consistency.rows(db) == before, (field, junk)
            continue
        # A list may be given as any sequence.
        assert getattr(outgoing, field) in (junk, [*junk] if junk == () else junk), (field, junk, outgoing)
        assert db.mail.outgoing(outgoing.id) == outgoing


@pytest.mark.parametrize("which", range(3), ids=["arrival", "target", "joined"])
def test_nonsense_that_is_chosen_is_refused_and_nothing_is_claimed(db: SessionDB, which: int) -> None:
    waiting = mail.came(db, "1", "2")
    for junk in JUNK:
        chosen: list[Any] = [waiting[0].id, "talk", [waiting[1].id]]
        chosen[which] = junk
        before = consistency.rows(db)
        if refused(lambda chosen=chosen: db.mail.begin_next_inbound(mail.ROUTE, lambda *_: tuple(chosen))):
            assert consistency.rows(db) == before, junk
        else:
            # Taken as it is: a name that is hostile only, or nobody to be joined.
            assert junk == [] or junk == () or isinstance(junk, str), junk


def test_a_choice_that_fails_claims_nothing(db: SessionDB) -> None:
    mail.came(db, "1")
    before = consistency.rows(db)
    with pytest.raises(ZeroDivisionError):
        db.mail.begin_next_inbound(mail.ROUTE, lambda *_: 1 // 0)
    assert consistency.rows(db) == before


@pytest.mark.parametrize(
    "message", [None, 5, "text", b"x", [], {}, {"content": "x"}, {"role": "user", "extra": 1}, {5: 5}]
)
def test_what_is_no_message_is_refused(db: SessionDB, message: object) -> None:
    conversations.begin(db, "talk")
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.append_messages("talk", [{"role": "user", "content": "good"}, message])


@pytest.mark.parametrize(
    "create",
    [{"source": ""}, {"source": None}, {"source": 5}, {"source": "s", "model": ""}, {"source": "s", "title": ""},
     {"source": "s", "owner": None}, {"source": "s", "owner": "a\nb"}, {"source": "s", "route": ""},
     {"source": "s", "route": 5}],
)  # fmt: skip
def test_conversation_born_of_nonsense_is_refused(db: SessionDB, create: Arguments) -> None:
    with pytest.raises(errors.HoldfastError):
        db.append_message("new", role="user", content="x", create=NewConversation(**create))
    assert db.list_sessions() == []


# --- texts -----------------------------------------------------------------------------------------------

TEXTS = {
    "empty": "",
    "NUL": "a\0b\0",
    "control characters": "".join(map(chr, range(32))) + "\x7f\x80\x9f",
    "line ends": "a\r\nb\rc\nd\u2028e\u2029f\x85",
    "astral": "🚀👩‍👩‍👧‍👦𝔘",
    "right to left": "\u202eabc\u202c عربى",
    "last code points": "\ufffe\uffff\U0010ffff",
    "not normalised": "é e\u0301 ﬁ",
    "JSON in text": '{"tool_calls": [{"id": "x"}], "content": "\\u0000"}',
    "SQL in text": "'; DROP TABLE messages; -- :conversation ?1 @x $y",
    "backslashes": "\\\\ \\n \\ud800",
    "byte order mark": "\ufeffx",
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_comes_back_exactly(db: SessionDB, name: str) -> None:
    text = TEXTS[name]
    conversations.begin(db, "talk")
    part = {"type": "text", "text": text, text: [text]}
    call = types.ToolCall("call" + text, text, {text: text})
    db.append_message("talk", role="user", content=text)
    db.append_message("talk", role="assistant", content=[part], tool_calls=[call])
    db.append_message("talk", role="tool", content=text, tool_call_id="call" + text)
    plain, parts, result = db.context("talk")
    assert (plain.content, parts.content, parts.tool_calls) == (text, [part], (call,))
    assert (result.content, result.tool_call_id) == (text, "call" + text)
    conversations.compact(db, "talk", 3, text, ledger={text: text})
    assert (db.compactions("talk")[0].summary, db.compactions("talk")[0].ledger) == (text, {text: text})


SURROGATES = ["\ud800", "a\udfffb", "\udc80"]


@pytest.mark.parametrize("text", SURROGATES)
def test_text_that_is_not_unicode_is_refused(db: SessionDB, text: str) -> None:
    conversations.begin(db, "talk", "a")
    messages: list[Arguments] = [
        {"content": text}, {"content": [{"t": text}]}, {"content": [{text: 1}]}, {"tool_call_id": text},
        {"tool_calls": [types.ToolCall("c", text)]}, {"tool_calls": [{"id": text}]},
        {"tool_calls": [types.ToolCall("c", "n", {"x": [text]})]},
    ]  # fmt: skip
    with conversations.nothing_changes(db):
        for message in messages:
            with pytest.raises(errors.InvalidArgument):
                db.append_message("talk", role="user", **message)
        for more in ({"summary": text}, {"summary": "s", "ledger": {"x": text}}):
            with pytest.raises(errors.InvalidArgument):
                db.commit_compaction(db.snapshot("talk"), cut_seq=1, **more)


def test_ten_megabytes_come_back_exactly(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    text = "0123456789\n\0é🚀" * 700_000
    db.append_message("talk", role="user", content=text)
    db.append_message("talk", role="user", content=[{"type": "text", "text": text}])
    plain, parts = db.context("talk")
    assert plain.content == text
    assert parts.content == [{"type": "text", "text": text}]


def test_text_beyond_the_limit_is_refused(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    huge = "x" * (64 * 1024 * 1024)
    with conversations.nothing_changes(db):
        with pytest.raises(errors.InvalidArgument):
            db.append_message("talk", role="user", content=huge)
        with pytest.raises(errors.InvalidArgument):
            db.commit_compaction(db.snapshot("talk"), summary=huge, cut_seq=1)


# --- structure --------------------------------------------------------------------------------------------


def nested(depth: int, kind: type) -> object:
    value: object = "bottom"
    for _ in range(depth):
        value = {"in": value} if kind is dict else [value]
    return value


def deep_in_the_stack(depth: int, call: Callable[[], object]) -> object:
    return call() if depth == 0 else deep_in_the_stack(depth - 1, call)


@pytest.mark.parametrize("kind", [dict, list])
def test_deep_structure_comes_back_however_deep_its_reader_stands(db: SessionDB, kind: type) -> None:
    conversations.begin(db, "talk")
    part = {"deep": nested(95, kind)}
    call = types.ToolCall("c", "n", part)
    db.append_message("talk", role="assistant", content=[part], tool_calls=[call])
    db.append_message("talk", role="tool", tool_call_id="c")
    db.commit_compaction(db.snapshot("talk"), summary="s", cut_seq=0, ledger=part)
    message = deep_in_the_stack(500, lambda: [db.context("talk")[1], db.context("talk")[1].content][0])
    assert (message.content, message.tool_calls) == ([part], (call,))
    assert db.compactions("talk")[0].ledger == part


@pytest.mark.parametrize("depth", [101, 990, 100_000])
@pytest.mark.parametrize("kind", [dict, list])
def test_bottomless_structure_is_refused(db: SessionDB, kind: type, depth: int) -> None:
    conversations.begin(db, "talk", "a")
    part = {"deep": nested(depth, kind)}
    with conversations.nothing_changes(db):
        with pytest.raises(errors.InvalidArgument):
            db.append_message("talk", role="user", content=[part])
        with pytest.raises(errors.InvalidArgument):
            db.append_message("talk", role="user", tool_calls=[types.ToolCall("c", "n", part)])
        with pytest.raises(errors.InvalidArgument):
            db.commit_compaction(db.snapshot("talk"), summary="s", cut_seq=1, ledger=part)


def test_structure_that_holds_itself_is_refused(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    part: dict[str, Any] = {}
    part["self"] = part
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.append_message("talk", role="user", content=[part])


class Colour(enum.Enum):
    RED = "red"


UNLIKE_JSON = {
    "bytes": b"x", "NaN": float("nan"), "infinity": float("inf"), "tuple": (1, 2), "set": {1}, "number as key": {1: 2},
    "None as key": {None: 2}, "date": datetime.date(2026, 1, 1), "enum": Colour.RED, "object": object(),
    "function": len, "a message": NewMessage(role="user"),
}  # fmt: skip


@pytest.mark.parametrize("what", UNLIKE_JSON)
def test_what_json_would_quietly_change_is_refused(db: SessionDB, what: str) -> None:
    conversations.begin(db, "talk", "a")
    value = UNLIKE_JSON[what]
    with conversations.nothing_changes(db):
        for more in ({"content": [{"x": value}]}, {"tool_calls": [types.ToolCall("c", "n", {"x": [value]})]}):
            with pytest.raises(errors.InvalidArgument):
                db.append_message("talk", role="user", **more)
        with pytest.raises(errors.InvalidArgument):
            db.commit_compaction(db.snapshot("talk"), summary="s", cut_seq=1, ledger={"x": value})


@pytest.mark.parametrize("value", [0, -1, 2**63, 2**80 + 1, 0.1, -0.0, 1e300, True, False, None, "", [], {}, [[], {}]])
def test_json_comes_back_exactly(db: SessionDB, value: object) -> None:
    conversations.begin(db, "talk")
    db.append_message("talk", role="user", content=[{"x": value, "": value}])
    (message,) = db.context("talk")
    assert repr(message.content[0]["x"]) == repr(value)


def test_calls_may_be_in_the_form_chat_apis_use(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"broken'}}
    db.append_message("talk", role="assistant", tool_calls=[call, {"id": "d", "name": "n", "arguments": {"a": 1}}])
    assert db.transcript("talk")[0].tool_calls == (
        types.ToolCall("c", "look", '{"broken'), types.ToolCall("d", "n", {"a": 1}),
    )  # fmt: skip


@pytest.mark.parametrize(
    "call",
    [None, "c", 5, {}, {"id": ""}, {"id": 5}, {"id": "c", "name": 5}, {"id": "c", "arguments": 5},
     {"id": "c", "arguments": None}, {"id": "c", "function": "look"},
     types.ToolCall("", "n"), types.ToolCall("c", None), types.ToolCall(None)],
)  # fmt: skip
def test_what_is_no_call_is_refused(db: SessionDB, call: object) -> None:
    conversations.begin(db, "talk")
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.append_message("talk", role="assistant", tool_calls=[call])


# --- ids ----------------------------------------------------------------------------------------------------

HOSTILE = [
    "../../etc/passwd", "/", "..", "a/b\\c", "'", '"', "';--", "%", "_", "*", "?", ":memory:", "file:x?mode=memory",
    "null", "0", "-1", " ", " a ", "<script>", "${HOME}", "{}", "🚀", "x" * 200, "last", "nil\\0",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=conversations.short)
def test_hostile_id_is_only_data(db: SessionDB, name: str) -> None:
    made = db.create_session(name, source=name, model=name, owner=name)
    receipt = db.append_message(name, role="user", content="x", uid=name)
    assert (made.id, made.source, made.model, made.owner, receipt.uid) == (name,) * 5
    assert db.append_message(name, role="user", content="x", uid=name).duplicate
    child = db.commit_compaction(db.snapshot(name), summary="s", cut_seq=1, child_id=name[:198] + "/2")
    assert (db.head(name).id, db.get_session(child.id).parent_session_id) == (child.id, name)
    db.bind_route(name, name, version=0)
    assert db.route(name).conversation_id == name
    db.delete_conversation(name)
    assert db.list_sessions() == []


BAD_IDS = [
    "",
    "x" * 201,
    "a\0b",
    "\0",
    "a\nb",
    "\x1b[31m",
    "\ud800",
    "\u200b",
    "\u202e",
    "\xa0",
    b"x",
    5,
    1.5,
    True,
    ["x"],
    object(),
]


@pytest.mark.parametrize("name", BAD_IDS, ids=conversations.short)
def test_id_that_cannot_be_shown_is_refused(db: SessionDB, name: object) -> None:
    conversations.begin(db, "talk", "a")
    with conversations.nothing_changes(db):
        for call in (
            lambda: db.create_session(name, source="s"),
            lambda: db.create_session("new", source=name),
            lambda: db.create_session("new", source="s", model=name),
            lambda: db.append_message("talk", role="user", content="x", uid=name),
            lambda: db.append_message(name, role="user", content="x", create=NewConversation(source="s")),
            lambda: db.branch("talk", branch_id=name),
            lambda: conversations.compact_without_lease(db, "talk", 1, child_id=name),
            lambda: db.get_session(name),
            lambda: db.context(name),
        ):
            with pytest.raises(errors.InvalidArgument) as refusal:
                call()
            assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    "key", ["schema_format", "schema_revision", "schema_cookie", "generation", "created_at", "upkeep_done_at"]
)
def test_what_the_store_keeps_for_itself_cannot_be_set(db: SessionDB, key: str) -> None:
    before = db.admin.get_meta(key)
    with pytest.raises(errors.InvalidArgument):
        db.admin.set_meta(key, "abc")
    assert db.admin.get_meta(key) == before


def test_every_note_a_store_is_made_with_is_kept_for_itself(db: SessionDB) -> None:
    """Whatever a database labels its schema with: one that is added later is none a caller may set."""
    made = db.driver.read(lambda tx: {row[0] for row in tx.all("copy_meta")})
    assert {"schema_revision", "schema_cookie", "generation", "created_at"} <= made
    for key in made:
        with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
            db.admin.set_meta(key, "abc")


@pytest.mark.parametrize("call", ["sessions", "compactions", "branches", "usage", "budget", "mail.last_chat"])
def test_none_is_not_a_session_id(db: SessionDB, call: str) -> None:
    with pytest.raises(errors.InvalidArgument):
        operator.attrgetter(call)(db)(None)
