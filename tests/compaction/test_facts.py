"""What would be missed word for word is found in a sentence, and what says nothing is not."""

from __future__ import annotations

import pytest

from holdfast.compaction import must_keep


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The deposit is 1,450 EUR.", ["1,450 EUR"]),
        ("It listens on port 8443 now.", ["port 8443"]),
        ("between 3 and 4", []),
        ("on the 14th", []),
        ("Oven at 180°C, 12% off, $4.50 each.", ["180°C", "12%", "$4.50"]),
        ("See src/app/main.py and ~/notes/a b.", ["src/app/main.py", "~/notes/a"]),
        ("either/or 3/4", []),
        ("Ask at https://example.org/a?b=1.", ["https://example.org/a?b=1"]),
        ("Write to ada@example.org, please.", ["ada@example.org"]),
        ("Ticket OPS-4411, build 2.14.7, v3.1", ["OPS-4411", "2.14.7", "v3.1"]),
        ("It raised ConnectionError and ECONNRESET.", ["ConnectionError", "ECONNRESET"]),
        ("the column user_id", ["user_id"]),
        ("It was Marta Okonkwo on Monday.", ["Marta Okonkwo"]),
        ("预算是 3000 元", ["3000 元"]),
    ],
)
def test_facts_of_a_line(text: str, found: list[str]) -> None:
    assert [fact.text for fact in must_keep.find_facts(text)] == found
    assert all(each in text for each in found)


def test_addresses_are_no_files() -> None:
    assert must_keep.find_files("see https://x.org/a/b.py, ./run.sh and C:\\temp\\x.txt") == [
        "./run.sh",
        "C:\\temp\\x.txt",
    ]
