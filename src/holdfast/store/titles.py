"""Titles belong to the conversation: cleaned, unique per owner, untouched by a compaction."""

from __future__ import annotations

import re
import unicodedata

from holdfast import errors
from holdfast.store import port, state

MAX_TITLE = 100
# Control, zero-width and direction characters, lone surrogates, private and unassigned code points.
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn"}
_NUMBER = re.compile(r" #\d+$")


def clean(title: object) -> str:
    """The title as it is kept, or TitleInvalid. Spaces of any kind are folded into single ones."""
    if not isinstance(title, str):
        raise errors.TitleInvalid(f"A title is text, not {errors.shown(title)}.")
    # Far longer than any title: say so without looking at every character of it.
    if len(title) > 100 * MAX_TITLE:
        raise errors.TitleInvalid(f"The title has {len(title):,} characters; at most {MAX_TITLE} are kept.")
    spaced = "".join(" " if character.isspace() else character for character in title)
    seen = "".join(character for character in spaced if unicodedata.category(character) not in _UNSEEN)
    cleaned = " ".join(seen.split())
    if not cleaned:
        raise errors.TitleInvalid("The title is empty.")
    if len(cleaned) > MAX_TITLE:
        raise errors.TitleInvalid(f"The title has {len(cleaned):,} characters; at most {MAX_TITLE} are kept.")
    return cleaned


def refuse_taken(tx: port.Tx, owner: str, title: str, but: str | None = None) -> None:
    row = tx.one("title_holder", owner=owner, title=title)
    if row is not None and row[0] != but:
        raise errors.TitleTaken(title, row[0])


def set_title(tx: port.Tx, session_id: str, title: str | None) -> None:
    here = state.lock(tx, session_id)
    if title is not None:
        refuse_taken(tx, here.owner, title, but=here.id)
    tx.run("title_set", key=here.key, title=title)


def numbered(tx: port.Tx, owner: str, title: str | None) -> str | None:
    """The title of a branch: `name #2`, or the first number that is free."""
    if title is None:
        return None
    base = _NUMBER.sub("", title)[: MAX_TITLE - 8].rstrip()
    taken = {row[0] for row in tx.all("titles_like", owner=owner, start=base + " #")}
    return next(name for name in (f"{base} #{n}" for n in range(2, len(taken) + 3)) if name not in taken)
