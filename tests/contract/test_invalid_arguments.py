"""Any argument is stored and returned exactly, or refused with a Holdfast error that leaves nothing half-written."""

from __future__ import annotations

import datetime
import enum
import operator
from typing import Any

import msgspec
import pytest

from holdfast import NewConversation, NewMessage, SessionDB, errors, types
from tests.support import backends, consistency, conversations, mail
from tests.support.invalid_arguments import CALLS, HOSTILE, JUNK, parameters, refused, valid_arguments


def fill(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    conversations.compact(db, "talk", 1)
    db.hide("talk", 3)
    conversations.act(db, "talk")


@pytest.mark.parametrize("call", CALLS)
def test_junk_is_refused_with_a_holdfast_error_or_harmless(db: SessionDB, call: str) -> None:
    fill(db)
    good = valid_arguments(db, call)
    before = consistency.rows(db)
    # On a server, each look at all rows takes long: it gets all values before the next look.
    groups = [HOSTILE] if backends.in_postgres(db) else [[junk] for junk in JUNK]
    for name, group in ((name, group) for name in good for group in groups):
        # Errors of a callback are the caller's own.
        junks = [junk for junk in group if not (callable(junk) and callable(good[name]))]
        refusals = [
            refused(lambda name=name, junk=junk: operator.attrgetter(call)(db)(**{**good, name: junk}))
            for junk in junks
        ]
        after = consistency.rows(db)
        # Wrong pairing codes are counted.
        kept = any(refusal is None or isinstance(refusal, errors.PairingRefused) for refusal in refusals)
        assert kept or after == before, (name, junks)
        assert max((len(str(refusal)) for refusal in refusals), default=0) < 400, (name, junks)
        before = after
    assert db.get_session("talk")


# It returns None, or makes the conversation.
UNREFUSED = [(call, "session_id") for call in ("get_session", "create_session", "begin_conversation")]
ABOUT_A_CONVERSATION = [
    (call, name)
    for call in CALLS
    for name in ("session_id", "parent_session_id", "conversation_id")
    if name in parameters(call) and (call, name) not in UNREFUSED
]


@pytest.mark.parametrize(("call", "name"), ABOUT_A_CONVERSATION)
def test_unknown_or_deleted_conversation_is_refused(db: SessionDB, call: str, name: str) -> None:
    fill(db)
    conversations.begin(db, "gone", "a")
    db.delete_conversation("gone")
    good = valid_arguments(db, call)
    if "append" in call:
        good["create"] = None
    before = consistency.rows(db)
    for value, error in (("nobody", errors.NoSuchSession), ("gone", errors.ConversationDeleted)):
        with pytest.raises(error):
            operator.attrgetter(call)(db)(**{**good, name: value})
    assert consistency.rows(db) == before


def nested(depth: int, kind: type = dict) -> Any:
    value: object = "bottom"
    for _ in range(depth):
        value = {"in": value} if kind is dict else [value]
    return value


def containing_itself() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


class Colour(enum.Enum):
    RED = "red"


IDS = ["", "x" * 201, "a\0b", "\x1b[31m", "\ud800", "\u200b", "\u202e", "\xa0", b"x", 5, True, ["x"], object()]


COUNTS = [-1, "5", 1.5, True, 2**70]
TITLES = ["", "   ", "\u200b", "\0", "x" * 101, "x" * 1_000_000, 5, b"plan", ["plan"]]
FOLDERS = ["", "here", "~/here", "C:here", "/\0", "/\ud800", "/" + "x" * 4096, 5, b"/", ["/"]]
NOT_JSON = [
    *(b"x", float("nan"), float("inf"), (1, 2), {1}, {1: 2}, {None: 2}, datetime.date(2026, 1, 1), Colour.RED, len),
    *(object(), NewMessage(role="user"), "\ud800", {"\udfff": 1}, nested(101), nested(101, list), nested(100_000)),
    containing_itself(),
]
METADATA = [[1], "x", 5, {1: 2}, *({"x": value} for value in NOT_JSON), {"x": "é" * 2048}, nested(11)]
BUDGETS = [None, 5, '{"a": 1}', [], {1: 2}, {"x": b"x"}, {"x": float("nan")}, {"x": (1,)}, {"x": "é" * 32_768}]
TOOL_CALLS = [
    [None], ["c"], [{}], [{"id": ""}], [{"id": 5}], [{"id": "c", "name": 5}], [{"id": "c", "arguments": 5}],
    [{"id": "c", "arguments": None}], [{"id": "c", "function": "look"}], [types.ToolCall("")],
    [types.ToolCall("c", None)], [types.ToolCall("c", "\ud800")], [{"id": "\ud800"}],
]  # fmt: skip
MESSAGES = [
    [{"role": "user"}, message]
    for message in (None, 5, "text", [], {}, {"content": "x"}, {"role": "user", "extra": 1}, {5: 5})
]
CREATIONS = [
    NewConversation(**{"source": "s", **wrong})
    for wrong in (
        *({"source": each} for each in ("", None, 5)), {"model": ""}, {"title": ""}, {"owner": None}, {"owner": "a\nb"},
        {"route": ""}, {"route": 5}, {"folder": "here"}, {"metadata": [1]},
    )
]  # fmt: skip
INBOUND = [
    mail.new(**wrong)
    for wrong in (
        {"key": ""}, {"key": "x" * 201}, {"key": "a\nb"}, {"platform": "p" * 41}, {"platform": ""}, {"home": ""},
        {"route": ""}, {"chat": "x" * 501}, {"sender": ""}, {"text": 5}, {"text": "x" * 1_000_001}, {"text": "\ud800"},
        {"name": 5}, {"parts": "no list"}, {"parts": [{"blob": b"bytes"}]}, {"address": []},
        {"address": {"x": "y" * 20_000}}, {"address": {"x": float("nan")}}, {"at": -1},
    )
]  # fmt: skip
OUTGOING = [
    mail.reply(**wrong)
    for wrong in (
        {"platform": ""}, {"chat": ""}, {"address": None}, {"kind": "shout"}, {"text": 5}, {"text": "\ud800"},
        {"seq": -1}, {"attachments": [5]}, {"attachments": ["a" * 64], "file_names": {"a" * 64: "\n"}},
    )
]  # fmt: skip
PROCESSES = [
    msgspec.structs.replace(conversations.process("p", "talk"), **wrong)
    for wrong in (
        {"id": ""}, {"id": "x" * 195}, {"id": "a\nb"}, {"command": ""}, {"command": "\ud800"}, {"folder": 5},
        {"place": "here"}, {"started_at": "now"}, {"started_at": -1.0}, {"state": "exited"}, {"ended_at": 1.0},
        {"exit_code": 0}, {"conversation_id": None},
    )
]  # fmt: skip

# Values that every method refuses for a parameter of this name.
INVALID: dict[str, list[Any]] = {
    "session_id": IDS, "branch_id": IDS, "child_id": IDS, "uid": IDS, "source": ["a\0b", "\ud800", b"x", 5, True],
    "title": TITLES, "folder": FOLDERS, "metadata": METADATA, "owner": [5], "live": ["yes"], "every": [2],
    "limit": COUNTS, "skip": COUNTS, "max_bytes": COUNTS, "older_than_days": [-1, "7", True, b"7", [7], float("nan")],
    "end_reason": ["", "x" * 101, "a\nb", None, 5, b"x", "\ud800"], "at_seq": [-1, 99, 1.0, "1", True, b"1"],
    "content": ["\ud800", 5, *([{"x": value}] for value in NOT_JSON)], "tool_call_id": ["\ud800"],
    "tool_calls": [*TOOL_CALLS, *([types.ToolCall("c", "n", {"x": [value]})] for value in NOT_JSON)],
    "at": [-1, 1e12, float("nan"), "1", True], "create": CREATIONS, "messages": MESSAGES,
    "from_seq": [0, 4, -1, "1", True, None], "to_seq": [0, 4, 2.0], "purpose": ["sleep", None, []],
    "holder": ["", "a\nb", "x" * 201, 5, b"one", ["one"], "\ud800"], "ttl": [0, 86_401, float("nan"), True, None],
    "ledger": [{"x": value} for value in NOT_JSON], "cut_seq": [0, 4], "seen_seq": [2, 4], "pinned": [[0], [-1], [4]],
    "body": BUDGETS, "version": [-1, 1.0, True, None, "0", 2**70], "query": [None, "x" * 10_001], "neighbours": [99],
    "key": ["", "a\nb", "x" * 601, "\ud800", 5, b"r"], "value": [None, "é", "a\0b"], "after": ["x"], "role": ["king"],
    "rule": ["", None, 5, "a\nb", "x" * 4_001], "process": PROCESSES, "state": ["running", "napping"],
    "exit_code": [True, 2**40], "digest": ["", "../../etc/passwd", "0" * 63, "G" * 64, "0" * 65, None, 5],
    "session_ids": ["talk", 7, [None], [""], [b"talk"], ["a\0b"]], "write": [None, 1, "x"],
    "read": [None, 7, "text", b"bytes"], "lease": ["no lease"], "outgoing": [[mail.reply(), each] for each in OUTGOING],
    "days": [-1, float("nan"), True, "30"], "platform": ["", "p" * 41, 5], "sender": ["", "a\nb", None],
}  # fmt: skip
# Further values that only this method refuses.
INVALID_FOR: dict[tuple[str, str], list[Any]] = {
    **{(call, "session_id"): [None] for call in ("sessions", "compactions", "usage", "budget", "mail.last_chat")},
    **{(f"{verb}_compression_lock", "holder"): [None] for verb in ("try_acquire", "refresh", "release")},
    ("resolve", "text"): ["", "  ", None, 5, b"talk", ["talk"], "\ud800", "a\0b", "a\nb"],
    ("set_session_metadata", "metadata"): [None],
    ("pin", "seq"): [0, 4, 2**40],
    ("redact", "seq"): [0, -1, 4, 2**70, "1", 1.0, None, True, b"1"],
    ("commit_compaction", "summary"): ["\ud800"],
    ("update_budget", "version"): [2**63 - 1],
    ("bind_route", "key"): ["x" * 501, None],
    ("memory.add", "text"): ["", " \n ", "\u200b\u202e\x07", "x" * 501, "x" * 100_000, None, 5, b"x", ["x"]],
    ("memory.update", "text"): ["", "x" * 501, None],
    ("processes.record_end", "text"): [""],
    ("admin.finalize_orphaned_sessions", "older_than_days"): [None],
    ("mail.add_inbox_entry", "key"): ["x" * 201, "process:1"],
    ("mail.add_inbox_entry", "text"): ["", "\ud800", "x" * 1_000_001],
    ("mail.settle_inbox_entry", "seq"): [9],
    ("mail.add_inbound", "new"): ["text", *INBOUND],
    ("mail.post", "new"): OUTGOING,
    ("contacts.allow", "role"): ["denied", "root", ""],
}
INVALID_CALLS = [
    (call, name) for call in CALLS for name in parameters(call) if name in INVALID or (call, name) in INVALID_FOR
]


@backends.on_memory
@pytest.mark.parametrize(("call", "name"), INVALID_CALLS, ids=str)
def test_invalid_argument_is_refused_and_changes_nothing(db: SessionDB, call: str, name: str) -> None:
    fill(db)
    good = valid_arguments(db, call)
    before = consistency.rows(db)
    for value in (*INVALID.get(name, []), *INVALID_FOR.get((call, name), [])):
        with pytest.raises(errors.InvalidArgument) as refusal:
            operator.attrgetter(call)(db)(**{**good, name: value})
        assert isinstance(refusal.value, ValueError)
        assert str(refusal.value).isprintable()
        assert len(str(refusal.value)) < 400
        if name == "limit":  # A traceback does not show the value.
            assert (refusal.value.parameter, refusal.value.__context__) == (name, None)
        assert consistency.rows(db) == before


@backends.on_memory
def test_prune_refuses_invalid_plans_and_paths(db: SessionDB) -> None:
    plan = db.admin.plan_prune(older_than_days=0)
    for given in ((plan, None), (plan, 5), (plan, ""), (plan, b"x"), (plan, "a\0b"), (None, "archive.jsonl")):
        with pytest.raises(errors.InvalidArgument):
            db.admin.prune(*given)
    with pytest.raises(errors.InvalidArgument):
        db.admin.plan_prune()


@backends.on_memory
@pytest.mark.parametrize("which", range(3), ids=["inbound", "target", "joined"])
def test_junk_that_a_callback_chooses_is_refused_and_begins_nothing(db: SessionDB, which: int) -> None:
    waiting = mail.came(db, "1", "2")
    before = consistency.rows(db)
    with pytest.raises(ZeroDivisionError):
        db.mail.begin_next_inbound(mail.ROUTE, lambda *_: 1 // 0)
    for junk in JUNK:
        chosen: list[Any] = [waiting[0].id, "talk", [waiting[1].id]]
        chosen[which] = junk
        if refused(lambda chosen=chosen: db.mail.begin_next_inbound(mail.ROUTE, lambda *_: tuple(chosen))):
            assert consistency.rows(db) == before, junk
        else:
            # Valid: a hostile name, or no message to join.
            assert junk == [] or junk == () or isinstance(junk, str), junk
            before = consistency.rows(db)


HOSTILE_IDS = [
    "../../etc/passwd", "a/b\\c", "';--", "%", "_", "file:x?mode=memory", "null", " ", "🚀", "x" * 200, "last",
]  # fmt: skip
TEXTS = {
    "empty": "",
    "NUL": "a\0b\0",
    "control characters": "".join(map(chr, range(32))) + "\x7f\x80\x9f",
    "line ends": "a\r\nb\rc\nd\u2028e\u2029f\x85",
    "astral": "🚀👩‍👩‍👧‍👦𝔘",
    "right to left": "\u202eabc\u202c عربى",
    "last code points": "\ufffe\uffff\U0010ffff\ufeffx",
    "not normalised": "é e\u0301 ﬁ",
    "JSON in text": '{"tool_calls": [{"id": "x"}], "content": "\\u0000"}',
    "SQL in text": "'; DROP TABLE messages; -- :conversation ?1 @x $y",
    "backslashes": "\\\\ \\n \\ud800",
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_is_returned_exactly(db: SessionDB, name: str) -> None:
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
    address = {"chat": text, "thread": [1, None]}
    stored, _ = db.mail.add_inbound(mail.new(text=text, name=text, parts=[part], address=address))
    found = mail.again(db, stored)
    assert (found.text, found.name, found.parts, found.address) == (text, text, [part], address)


def test_json_and_large_text_are_returned_exactly(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    values = [0, -1, 2**63, 2**80 + 1, 0.1, -0.0, 1e300, True, False, None, "", [], {}, [[], {}]]
    text = "0123456789\n\0é🚀" * 100_000
    contents: list[Any] = [text, [{"text": text, "type": "text"}], [{"": values, "x": values}]]
    for content in contents:
        db.append_message("talk", role="user", content=content)
    assert repr(conversations.contents(db.context("talk"))) == repr(contents)
    db.update_budget("talk", 0, {"x": values, "é\0": "x" * 64_000})
    assert repr(db.budget("talk")) == repr((1, {"x": values, "é\0": "x" * 64_000}))


@backends.on_memory
def test_tool_calls_may_be_in_the_form_of_chat_apis(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    function = {"name": "look", "arguments": "{"}
    call = {"id": "c", "type": "function", "function": function, "signature": {"s": "SIG"}}
    db.append_message("talk", role="assistant", tool_calls=[call, {"id": "d", "name": "n", "arguments": {"a": 1}}])
    first, second = db.transcript("talk")[0].tool_calls
    assert (first.id, first.name, first.arguments) == ("c", "look", "{")
    assert first.extra == {"signature": {"s": "SIG"}}
    assert second == types.ToolCall("d", "n", {"a": 1})


@pytest.mark.parametrize("name", HOSTILE_IDS, ids=conversations.short)
def test_hostile_id_is_plain_data(db: SessionDB, name: str) -> None:
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


def test_metadata_that_the_store_keeps_for_itself_cannot_be_set(db: SessionDB) -> None:
    made = db.driver.read(lambda tx: {row[0] for row in tx.all("copy_meta")})
    assert {"schema_revision", "schema_cookie", "generation", "created_at"} <= made
    for key in made | {"schema_format", "upkeep_done_at"}:
        before = db.admin.get_meta(key)
        with pytest.raises(errors.InvalidArgument):
            db.admin.set_meta(key, "abc")
        assert db.admin.get_meta(key) == before
    for value in ("one", "two"):
        db.admin.set_meta("note", value)
    assert db.admin.get_meta("note") == "two"
