"""Text with a NUL in it comes back from a database that keeps none."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from holdfast.store import queries
from holdfast.store.postgres import nul_text

odd = st.text(st.sampled_from(["\0", "\U0010ffff", "0", "1", "a"]))


@given(st.one_of(odd, st.text()))
def test_any_text_comes_back_and_has_no_nul_in_between(text: str) -> None:
    kept = nul_text.escape({"text": text, "number": 1})
    assert "\0" not in kept["text"]
    assert nul_text.unescape((kept["text"], kept["number"], None)) == (text, 1, None)


# Where text is kept as it came, and the columns it is in.
TABLES = re.compile(r"\b(?:INTO|UPDATE|FROM|JOIN) (?:inbox|processes|audit|grants)\b")
COLUMNS = ("text", "command", "folder", "place", "call_id", "tool", "summary", "decided_by", "rule", "given_by")


def test_every_query_that_is_given_such_text_is_folded_and_every_one_that_gives_it_unfolded() -> None:
    asked = {name: sql for name, sql in queries.load("postgres").items() if TABLES.search(sql)}
    given = {name for name, sql in asked.items() if any(f"%({column})s" in sql for column in COLUMNS)}
    assert given == nul_text.ESCAPED_QUERIES
    assert {name for name, sql in asked.items() if _gives(sql)} == nul_text.UNESCAPED_QUERIES


def _gives(sql: str) -> bool:
    """Whether one of the columns stands in what is answered."""
    found = re.match(r"SELECT (.*?) FROM ", " ".join(sql.split()))
    names = re.findall(r"(?:\w\.)?(\w+)", re.sub(r"::\w+| AS text|'[^']*'", "", found[1])) if found else []
    return any(name in COLUMNS for name in names)
