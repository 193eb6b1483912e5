"""The declared PostgreSQL schema is parsed, and differences from it are reported."""

from __future__ import annotations

import pytest

from holdfast.store.driver import MISSING
from holdfast.store.postgres import definitions

TEXT = """-- A story.
CREATE TABLE t (
  a bigint NOT NULL, -- why
  b text
);

CREATE UNIQUE INDEX t_once ON t (a);

-- What it does.
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RETURN NEW;
END $$;

CREATE TRIGGER g
BEFORE UPDATE OF a ON t FOR EACH ROW
EXECUTE FUNCTION f();

ALTER TABLE t ADD UNIQUE (b);
"""
PARTS = definitions.DeclaredSchema(
    tuple(definitions.parse_statement(sql) for sql in definitions.split_statements(TEXT))
)
SOUND: definitions.Definitions = {
    ("table", "t", ""): "",
    ("column", "a", "t"): "bigint",
    ("index", "t_once", "t"): "an index",
    ("function", "f", ""): "a function",
    ("trigger", "g", "t"): "a trigger",
    ("constraint", "t_b_key", "t"): "UNIQUE (b)",
}


@pytest.mark.parametrize(
    ("found", "reported"),
    [
        (SOUND, []),
        ({("function", "f", ""): "a function"}, [
            ("the table t is missing", True), ("the index t_once is missing", True), ("the trigger g is missing", True),
        ]),
        (SOUND | {("column", "a", "t"): "text"}, [("the column a of t differs from its declaration", False)]),
        (SOUND | {("trigger", "x", "t"): "a stranger"}, [("the trigger x is not part of the schema", False)]),
    ],
)  # fmt: skip
def test_difference_is_reported(found: definitions.Definitions, reported: list[tuple[str, bool]]) -> None:
    assert definitions.decode(definitions.encode(SOUND)) == SOUND
    faults = definitions.find_faults(found, SOUND, PARTS, newer=False, same_server=True)
    assert [(str(fault), fault.repairable) for fault in faults] == reported


def test_other_versions_may_differ_in_words_or_add_objects() -> None:
    other = {place: f"{text}, written differently" for place, text in SOUND.items()}
    assert definitions.find_faults(other, SOUND, PARTS, newer=False, same_server=False) == []
    other[("trigger", "g", "t")] = "written differently DISABLED"
    del other[("index", "t_once", "t")]
    found = definitions.find_faults(other, SOUND, PARTS, newer=False, same_server=False)
    assert {fault.what for fault in found} == {definitions.DISABLED, MISSING}
    newer = SOUND | {("trigger", "x", "t"): "newer", ("function", "f", ""): "newer"}
    assert definitions.find_faults(newer, SOUND, PARTS, newer=True, same_server=True) == []


def test_object_replaced_during_the_query_is_read_again() -> None:
    """PostgreSQL has no text for one that is gone since the query began."""
    answers = [[("function", "f", "", None)], [("function", "f", "", "a function")]]
    assert definitions.read_definitions(lambda *_: answers.pop(0), PARTS) == {("function", "f", ""): "a function"}
