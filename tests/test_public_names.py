"""The public names: their arguments, light imports, and errors without the text of messages."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import NewConversation, SessionDB, errors
from holdfast.acp import channel, client
from tests.support import conversations


def loaded_by(statement: str) -> set[str]:
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_names_are_loaded_on_demand() -> None:
    heavy = {"apsw", "msgspec", "asyncio", "holdfast.store.db", "holdfast.types"}
    assert loaded_by("import holdfast; holdfast.__version__").isdisjoint(heavy)
    assert {"apsw", "msgspec"} <= loaded_by("from holdfast import SessionDB")
    assert "apsw" not in loaded_by("from holdfast import errors, types")


def test_every_exported_name_is_there_and_no_other() -> None:
    assert [name for name in holdfast.__all__ if not hasattr(holdfast, name)] == []
    with pytest.raises(AttributeError, match="nonsense"):
        _ = holdfast.nonsense
    assert all(issubclass(kind, ValueError) for kind in (errors.TitleTaken, errors.InvalidArgument))


def every_error(kind: type[errors.HoldfastError] = errors.HoldfastError) -> Iterator[type[errors.HoldfastError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from every_error(below)


# Some are defined where they are raised, and may not be loaded yet.
ERRORS = sorted({*every_error(), channel.EditorGone, client.NotOffered}, key=lambda kind: kind.__name__)


def made(kind: type[errors.HoldfastError]) -> errors.HoldfastError:
    """An error made with whatever it needs."""
    samples: dict[str, Any] = {"epoch": 3, "seq": 3, "line": 3, "version": 3, "found": 3, "known": 2, "expires_in": 1.5}
    samples |= {"tokens": 3, "window": 3}
    lists = {"candidates", "branches", "problems"}
    needed = [one for one in inspect.signature(kind).parameters.values() if one.default is one.empty and one.kind < 2]
    return kind(*(["one", "two"] if each.name in lists else samples.get(each.name, "text") for each in needed))


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_error_has_a_docstring_and_a_message(kind: type[errors.HoldfastError]) -> None:
    assert (kind.__doc__ or "").startswith(("Raised when ", "The base class "))
    if not any(each.default is each.empty for each in inspect.signature(kind).parameters.values()):
        assert str(kind()) == kind.default_message
        assert str(kind("in other words")) == "in other words"
    assert str(made(kind)).endswith((".", ")"))


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("travel", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])
def test_error_survives_copy_and_pickle(
    kind: type[errors.HoldfastError], travel: Callable[[errors.HoldfastError], errors.HoldfastError]
) -> None:
    error = made(kind)
    arrived = travel(error)
    assert (type(arrived), str(arrived), vars(arrived)) == (kind, str(error), vars(error))


def test_quoted_text_is_short_and_printable() -> None:
    for text in ("x" * 10_000, "a\0b\n\x1b[31m\ud800", "'\"", b"bytes", None, ["list"]):
        shown = errors.quote(text)
        assert len(shown) <= 60
        assert shown.isprintable()


MARK = "xyzzy-the-secret"


def carried(error: BaseException | None, depth: int = 0) -> Iterator[str]:
    """Everything an error holds, and the errors behind it, suppressed or not."""
    if error is None or depth > 8:
        return
    # A UnicodeError keeps the whole text it failed on as `object`.
    yield from map(repr, (str(error), error.args, vars(error), getattr(error, "object", None)))
    yield from carried(error.__cause__, depth + 1)
    yield from carried(error.__context__, depth + 1)


def deep(text: str) -> list[dict[str, Any]]:
    value: Any = text
    for _ in range(200):
        value = [value]
    return [{"x": value}]


def say(db: SessionDB, content: object, **more: Any) -> object:
    return db.append_message("talk", role=more.pop("role", "user"), content=content, **more)


def summarize(db: SessionDB, **more: Any) -> object:
    return db.commit_compaction(db.snapshot("talk"), **{"summary": MARK, "cut_seq": 1, **more})


PROVOKED: dict[str, Callable[[SessionDB], object]] = {
    "not Unicode": lambda db: say(db, MARK + "\ud800"),
    "not Unicode in a call": lambda db: say(db, "", tool_calls=[{"id": "c", "arguments": MARK + "\ud800"}]),
    "not JSON": lambda db: say(db, [{"text": MARK, "more": object()}]),
    "too deep": lambda db: say(db, deep(MARK)),
    "too long": lambda db: say(db, MARK * (5 * 1024 * 1024)),
    "not given back": lambda db: say(db, [{"text": MARK.encode()}]),
    "ledger not JSON": lambda db: summarize(db, ledger={"x": MARK, "y": object()}),
    "summary beyond the log": lambda db: summarize(db, cut_seq=99),
    "uid reused in a batch": lambda db: db.append_messages(
        "talk", [{"role": "user", "content": text, "uid": "u"} for text in (MARK, MARK + "2")]
    ),
    "uid reused": lambda db: say(db, MARK, uid="taken"),
    "unknown key": lambda db: db.append_messages("talk", [{"role": "user", "content": MARK, "extra": MARK}]),
    "superseded": lambda db: say(db, MARK, expect_head=True),
    "route moved": lambda db: db.append_message(
        "new", role="user", content=MARK, create=NewConversation(source="s", route="bound")
    ),
    "refused by the database": lambda db: db.driver._writer.execute(
        "UPDATE messages SET body = ?", (MARK,)
    ),
    "summary not Unicode": lambda db: summarize(db, summary=MARK + "\ud800"),
    "memory too long": lambda db: db.memory.add("o", MARK * 1_000),
    "inbound not Unicode": lambda db: db.mail.add_inbox_entry("talk", "k", MARK + "\ud800"),
    "inbound key used twice": lambda db: [db.mail.add_inbox_entry("talk", "k", text) for text in (MARK, MARK + "!")],
    "process not Unicode": lambda db: db.processes.record_start(conversations.process("p", "talk", MARK + "\ud800")),
    "process id used twice": lambda db: [
        db.processes.record_start(conversations.process("p", "talk", MARK + text)) for text in "ab"
    ],
}  # fmt: skip


@pytest.mark.parametrize("how", PROVOKED)
def test_no_error_carries_the_text_of_a_message(how: str) -> None:
    with SessionDB(":memory:") as db:
        conversations.begin(db, "talk", MARK)
        db.append_message("talk", role="user", content=MARK + " before", uid="taken")
        db.hide("talk", 1, 1)
        db.bind_route("bound", "talk", version=0)
        conversations.compact(db, "talk", 1, MARK)
        with pytest.raises(Exception) as raised:  # noqa: PT011 -- whatever it is, it is searched
            PROVOKED[how](db)
        assert not any(MARK in text for text in carried(raised.value))
        assert MARK not in repr(db.context("talk"))
