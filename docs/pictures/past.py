"""Conversations for the pictures of the full screen: `python docs/pictures/past.py STORE`. All of it is made up."""

from __future__ import annotations

import sys
import time

from holdfast import SessionDB, types

MODEL = "anthropic/claude"
LOOKED = """\
Two of the five tests fail, and both for the same reason: `total()` adds up *strings*.

1. **`cart.py`, line 12**: a quantity comes from a form, and is never made a number.
2. `test_cart.py` checks the sum, so it sees `"12"` where `3` is meant.

```python
def total(lines: list[Line]) -> int:
    return sum(int(line.quantity) * line.price for line in lines)
```

> Shall I change it, and run the tests again?
"""
DONE = """\
Done: **5 passed**. The form now refuses what is no number, too.

| file | lines |
|---|---|
| `cart.py` | +2 −1 |
| `forms.py` | +6 |
"""


def said(words: str) -> types.NewMessage:
    return types.NewMessage(role="user", content=words, at=_now())


def answered(words: str, *calls: types.ToolCall) -> types.NewMessage:
    return types.NewMessage(role="assistant", content=words, tool_calls=calls, model=MODEL, at=_now())


def came(call: str, words: str) -> types.NewMessage:
    return types.NewMessage(role="tool", content=words, tool_call_id=call, at=_now())


def _now() -> float:
    return time.time()


def cart() -> list[types.NewMessage]:
    return [
        said("The tests of the cart fail since this morning. Why?"),
        answered(
            "",
            types.ToolCall("c1", "shell", '{"command": "pytest -q tests/test_cart.py"}'),
            types.ToolCall("c2", "read_file", '{"path": "cart.py"}'),
        ),
        came("c1", "Error: exit code 1\nFF...\nassert '12' == 3\n2 failed, 3 passed in 0.21s"),
        came("c2", '1\t"""The cart."""\n2\t\n3\tfrom lines import Line'),
        answered(LOOKED),
        said("Yes, please. And have the form refuse what is no number."),
        answered(
            "",
            types.ToolCall("c3", "edit_file", '{"path": "cart.py", "old": "line.quantity", "new": "int(…)"}'),
            types.ToolCall("c4", "shell", '{"command": "pytest -q tests/test_cart.py"}'),
        ),
        came("c3", "1 place changed in cart.py."),
        came("c4", "5 passed in 0.19s"),
        answered(DONE),
    ]


def fill(store: SessionDB) -> None:
    for title, words in (
        ("Names for the cat", "She is called Miso."),
        ("冬の旅行 🚆", "The train to Aomori leaves at 9:40."),
        ("Bread without kneading", "The dough has to rest for a night."),
    ):
        made = store.create_session(source="pictures", title=title).id
        store.append_messages(made, [said(words), answered("Noted.")])
    garden = store.create_session(source="pictures", title="The shop").id
    for part in range(3):
        store.append_messages(garden, [m for n in range(12) for m in (said(f"Step {part}.{n}?"), answered("Done."))])
        lease = store.acquire_lease(garden, "compact")
        store.commit_compaction(lease, summary="## Goal\n\nOpen the shop.", cut_seq=lease.snapshot.last_seq - 4)
    store.branch(garden, 20, title="The shop, with another till")
    store.append_messages(store.create_session(source="pictures", title="A cart that counts wrong").id, cart())


if __name__ == "__main__":
    with SessionDB(sys.argv[1]) as opened:
        fill(opened)
