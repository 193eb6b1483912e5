"""The ledger lists what left the context, within limits."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from holdfast.compaction import ledger
from tests.support.messages import calling, message


def test_ledger_names_ranges_tools_files_and_open_requests() -> None:
    messages = [
        message(3, "user", "Please fix src/app/main.py."),
        calling(4, "read_file", path="src/app/main.py"),
        calling(5, "run", command="pytest tests/app/test_main.py"),
        calling(9, "run", command="ls"),
        message(10, "user", "Remind me to tag the release with password=hunter2! later."),
    ]
    assert ledger.build(messages, ["model: took too long"]) == {
        "messages": 5,
        "ranges": [[3, 5], [9, 10]],
        "tools": {"run": 2, "read_file": 1},
        "files": ["src/app/main.py", "tests/app/test_main.py"],
        "asks": ["Please fix src/app/main.py.", "Remind me to tag the release with password=[redacted] later."],
        "notes": ["model: took too long"],
    }


def test_ledger_of_many_long_messages_stays_small_and_keeps_the_last_names() -> None:
    messages = [
        each
        for seq in range(1, 3_000, 3)
        for each in (
            calling(seq, f"tool{seq}" + "x" * 1_000, path=f"/srv/{'d' * 50}/file-{seq}.txt"),
            message(seq + 1, "user", f"Remind me to do thing {seq} later. " + "long " * 500),
        )
    ]
    made = ledger.build(messages, ["problem " * 1_000] * 100)
    assert len(json.dumps(made)) < 60_000
    assert made["messages"] == 2_000
    assert (made["ranges"][0][0], made["ranges"][-1][1]) == (1, 2_999)
    assert made["files"][-1] == f"/srv/{'d' * 50}/file-2998.txt"
    assert len(made["files"]) == ledger.MAX_FILES
    assert made["asks"][-1] == "Remind me to do thing 2998 later."
    assert len(made["asks"]) == ledger.MAX_ASKS


@given(st.lists(st.integers(1, 5_000), max_size=400))
def test_ranges_of_any_messages_cover_all_of_them(seqs: list[int]) -> None:
    ranges = ledger.build([message(seq, "user", "x") for seq in seqs]).get("ranges", [])
    assert len(ranges) <= ledger.MAX_RANGES
    assert all(any(first <= seq <= last for first, last in ranges) for seq in seqs)
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(ranges))
