"""A sample export, files made from it that would do harm, and the seals that make them look whole."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import SessionDB
from tests.support import backends, conversations, random_histories
from tests.support.random_histories import Step, exported

# Three conversations: `first` with steps of every kind, its branch, and a third one.
HISTORY = [
    Step("say", 0, 1, 0, "two"),
    Step("call", 0, 1, 0, "three"),
    Step("answer", 0, 1, 0, "four"),
    Step("hide", 0, 3, 3),
    Step("compact", 0, 4, 4, "x"),
    Step("say", 0, 0, 0, "five"),
    Step("undo"),
    Step("show"),
    Step("compact unleased", 0, 4, 4),
    Step("end"),
    Step("resume"),
    Step("hide", 0, 4, 4),
    Step("branch", 0, 1, 4),
    Step("say", 1, 1, 0, "mine"),
    Step("begin"),
    Step("say", 2, 0, 0, "alone"),
    Step("redact", 0, 0, 0),
    Step("route", 0, 1, 1),
]


@functools.cache
def sample() -> str:
    clock = conversations.Clock()
    with fresh(clock) as db:
        random_histories.perform(db, HISTORY, clock)
        text = exported(db)
    kinds = {json.loads(line).get("kind", "header") for line in text.splitlines()}
    assert kinds == {
        "header", "conversation", "session", "message", "compaction", "stand", "hide", "show", "route", "sealed", "end",
    }  # fmt: skip
    return text


def fresh(clock: conversations.Clock | None = None) -> SessionDB:
    return backends.open_db(backends.MEMORY, Path("."), "", clock or conversations.Clock())


def rows() -> list[str]:
    return sample().splitlines(keepends=True)


def resealed(lines: list[Any]) -> str:
    """The lines (objects, or text as it is) with seals as if this were what had been exported."""
    text: list[str] = []
    digests: list[str] = []
    begun = 0
    for line in lines:
        kind = line.get("kind") if isinstance(line, dict) else None
        if kind == "conversation":
            begun = len(text)
        if kind == "sealed":
            written = "".join(text[begun:])
            digests.append(hashlib.blake2b(written.encode(), digest_size=16).hexdigest())
            counts = {"sessions": written.count('"kind":"session"'), "messages": written.count('"kind":"message"')}
            line.update(counts, digest=digests[-1])
        if kind == "end":
            digest = hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()
            line.update(conversations=len(digests), digest=digest)
        made = line if isinstance(line, str) else json.dumps(line, ensure_ascii=False, separators=(",", ":"))
        text.append(made + "\n")
    return "".join(text)


def objects() -> list[dict[str, Any]]:
    return [json.loads(line) for line in rows()]


def where(objs: list[dict[str, Any]], kind: str, number: int = 0) -> int:
    found = [place for place, line in enumerate(objs) if isinstance(line, dict) and line.get("kind") == kind]
    return found[number]


Change = Callable[[list[Any]], int]


def _change(edit: Callable[..., int]) -> Callable[..., Change]:
    """Let an edit be given its arguments first and the lines later; it returns the number of the line it changed."""
    return lambda *args, **values: lambda objs: edit(objs, *args, **values)


@_change
def _field(objs: list[Any], kind: str, number: int = 0, /, **values: Any) -> int:
    place = where(objs, kind, number)
    objs[place] = {**objs[place], **values}
    return place


@_change
def _dropped(objs: list[Any], kind: str, number: int = 0) -> int:
    place = where(objs, kind, number)
    del objs[place]
    return place


@_change
def _text(objs: list[Any], text: str) -> int:
    objs.insert(4, text)
    return 4


@_change
def _body(objs: list[Any], body: str) -> int:
    """Replace the body of the second message by this text."""
    place = where(objs, "message", 1)
    line = json.dumps({**objs[place], "body": None}, separators=(",", ":"))
    objs[place] = line.replace('"body":null', f'"body":{body}')
    return place


@_change
def _forked(objs: list[Any], at: int) -> int:
    """Let the branch begin after another message of its origin."""
    place = where(objs, "conversation", 1)
    objs[place].update(forked_at=at, last_seq=at + 1)
    for line, field in ((objs[place + 1], "first_seq"), (objs[place + 2], "seq")):
        line[field] = at + 1
    return place


DEEP = "[" * 60_000 + "]" * 60_000

HOSTILE: dict[str, Change] = {
    "a negative seq": _field("message", 1, seq=-1),
    "a gap": _field("message", 1, seq=4),
    "a repeated uid": _field("message", 2, uid="made0"),
    "no uid": _field("message", 2, uid=""),
    "a control character in an id": _field("session", 1, id="\x1b[2J"),
    "an unknown role": _field("message", 1, role="admin"),
    "a time before all times": _field("message", 1, at=-1),
    "a message in a later session": _field("message", 1, session=2),
    "an added key in a redacted summary": _field("compaction", 0, body={"new": "text"}, redacted_at=1.0),
    "a body with wrong content": _field("message", 1, body={"content": 7}),
    "a body no append would write": _body('{ "content":"x"}'),
    "a new key in a body": _body('{"content":"x","new":1}'),
    "a deep body": _body(f'{{"content":[{{"a":{"[" * 200 + "]" * 200}}}]}}'),
    "a very deep line": _text(DEEP),
    "a lone surrogate": _body('{"content":"\\ud800"}'),
    "an empty route": _text('{"key":"","kind":"route","updated_at":1,"version":1}'),
    "a route without a version": _text('{"key":"k","kind":"route","updated_at":1,"version":0}'),
    "a redacted body": _field("message", 1, redacted_at=1.0),
    "two live sessions": _field("session", 0, ended_at=None, end_reason=None, last_seq=None),
    "half an end": _field("session", 0, end_reason=None),
    "a session that ends late": _field("session", 0, last_seq=9),
    "a session with a gap": _field("session", 1, first_seq=9),
    "sessions out of order": _field("session", 1, ordinal=3),
    "another first session": _field("session", 0, id="other"),
    "a session id used twice": _field("session", 2, id="made4"),
    "a cut beyond what was seen": _field("compaction", 0, cut_seq=9),
    "a summary of what was never written": _field("compaction", 0, seen_seq=99),
    "a cut before the one it stands on": _field("compaction", 1, base_epoch=3, cut_seq=0, body={}),
    "a token never given": _field("compaction", 0, token=99),
    "a compaction of the past": _field("compaction", 1, epoch=2),
    "a compaction of another session": _field("compaction", 1, session=2),
    "pins beyond the cut": _field("compaction", 0, body={"pinned": [9]}),
    "a redacted summary that speaks": _field("compaction", 0, body={"summary": "x"}, redacted_at=1.0),
    "a compaction lost": _dropped("compaction", 1),
    "a hide beyond the log": _field("hide", 0, to_seq=99),
    "a hide of the past": _field("hide", 1, epoch=1),
    "a hide backwards": _field("hide", 0, from_seq=4, to_seq=3),
    "a show of nothing": _field("show", 0, from_seq=2),
    "a show before its hide": _field("show", 0, shown_epoch=2),
    "a stand on nothing": _field("stand", 0, compaction_epoch=99),
    "an epoch that goes back": _field("conversation", 0, epoch=3),
    "an epoch beyond counting": _field("conversation", 0, epoch=2**63 - 1),
    "a live conversation that ended": _field("conversation", 0, live=False),
    "another head": _field("conversation", 0, head=2),
    "a redo of what is in force": _field("conversation", 0, redo_epoch=6),
    "a title that cannot be": _field("conversation", 0, title="a\nb"),
    "a folder as it is not kept": _field("conversation", 0, folder="/work/../etc"),
    "no source": _field("conversation", 0, source=""),
    "an unknown origin": _field("conversation", 1, origin="nobody"),
    "an origin that is another": _field("conversation", 1, forked_from="made14"),
    "a fork beyond the origin": _forked(99),
    "a fork on a compaction that saw more": _forked(1),
}
