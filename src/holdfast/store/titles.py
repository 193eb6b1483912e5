"""Title, folder and metadata of a conversation. A compaction does not change them.

A title is cleaned, and unique per owner. A folder is the working directory, for lists to filter by; it is compared as
text and never opened, because hosts that share a store may have other folders. Metadata is a small JSON object of the
embedding program.
"""

from __future__ import annotations

import ntpath
import os
import posixpath
import re
import unicodedata
from collections.abc import Mapping
from pathlib import PureWindowsPath
from typing import Any

from holdfast import errors
from holdfast.store import conversation_row, message_codec, validation
from holdfast.store.conversation_row import ConversationRow
from holdfast.store.driver import Driver, Tx
from holdfast.store.search import query_parser

MAX_TITLE = 100
MAX_FOLDER = 4096
# The maximum length of a title that is made from the first words of a message.
AUTOMATIC = 60
# Control, zero-width and direction characters, lone surrogates, private and unassigned code points.
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn"}
_NUMBER = re.compile(r" #\d+$")
# The number of a branch; a longer one, as in "PIN #4711", was written by the user.
_BRANCHED = re.compile(r" #\d{1,2}$")
_WORD = re.compile(r"[^\W_]+")
_START, _BETWEEN, _END = r"(?<![^\W_])", r"[\W_]+", r"(?![^\W_])"


class TitleMixin:
    """The methods of SessionDB for the title, folder and metadata of a conversation."""

    driver: Driver

    def set_session_title(self, session_id: str, title: str | None) -> str | None:
        """Set the title and return it normalized; None removes it. TitleTaken and InvalidArgument are ValueErrors."""
        cleaned = clean(title) if title is not None else None
        self.driver.write("title", lambda tx: set_title(tx, session_id, cleaned))
        return cleaned

    def set_session_folder(self, session_id: str, folder: str | None) -> str | None:
        """Set the folder, an absolute path, and return it normalized; None removes it.

        The folder need not exist. A running turn is not interrupted. Raises InvalidArgument, a ValueError.
        """
        cleaned = clean_folder_or_none(folder)
        self.driver.write(
            "folder", lambda tx: tx.run("folder_set", key=conversation_row.lock(tx, session_id).key, folder=cleaned)
        )
        return cleaned

    def set_session_metadata(self, session_id: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Merge these keys into the conversation's metadata and return the result (JSON Merge Patch, RFC 7396).

        A key whose value is None is removed, an object is merged, any other value replaces the stored one. So two
        programs that set different keys at the same time keep both. Raises InvalidArgument.
        """
        if metadata is None:
            raise validation.invalid("metadata", "an object", metadata)
        patch = message_codec.check_metadata(metadata)
        return self.driver.write(
            "metadata", lambda tx: merge_metadata(tx, conversation_row.lock(tx, session_id), patch)
        )


def clean(text: object, name: str = "title", max_length: int = MAX_TITLE) -> str:
    """Normalize a title; raise InvalidArgument if it is empty or too long."""
    if not isinstance(text, str):
        raise validation.invalid(name, "text", text)
    # A text far above the limit is refused without cleaning it.
    cleaned = normalize(text) if len(text) <= 100 * max_length else text
    if not 0 < len(cleaned) <= max_length:
        raise errors.InvalidArgument(
            f"`{name}` must have 1 to {max_length} visible characters, not {len(cleaned):,}.", parameter=name
        )
    return cleaned


def normalize(text: str) -> str:
    """Collapse whitespace to single spaces and remove invisible characters."""
    spaced = "".join(" " if character.isspace() else character for character in text)
    return " ".join(_remove_invisible(spaced).split())


def _remove_invisible(text: str) -> str:
    """Remove invisible characters. Each distinct character is classified once, as texts may be long."""
    unseen = [each for each in set(text) if not each.isspace() and unicodedata.category(each) in _UNSEEN]
    return text.translate(dict.fromkeys(map(ord, unseen))) if unseen else text


def check_title_free(tx: Tx, owner: str, title: str, but: str | None = None) -> None:
    row = tx.one("title_holder", owner=owner, title=title)
    if row is not None and row[0] != but:
        raise errors.TitleTaken(title, row[0])


def set_title(tx: Tx, session_id: str, title: str | None) -> None:
    here = conversation_row.lock(tx, session_id)
    if title is not None:
        check_title_free(tx, here.owner, title, but=here.id)
    tx.run("title_set", key=here.key, title=title)


def next_branch_title(tx: Tx, owner: str, title: str | None) -> str | None:
    """Return the title of a branch: `name #2`, or the first number that is free."""
    if title is None:
        return None
    base = _NUMBER.sub("", title)[: MAX_TITLE - 8].rstrip()
    taken = {row[0] for row in tx.all("titles_like", owner=owner, start=base + " #")}
    return next(name for name in (f"{base} #{n}" for n in range(2, len(taken) + 3)) if name not in taken)


def fold(text: str) -> str:
    """Fold case and accents, for `is_derived_from`."""
    return query_parser.index_text(_remove_invisible(text).casefold())


def is_derived_from(title: str, text: str) -> bool:
    """Return whether a title repeats words of a folded text. Then it is removed when the text is redacted.

    One word in common is enough, unless it is a stop word or a single character: a title of only these has to occur as
    a whole. The number of a branch is not compared.
    """
    base = _BRANCHED.sub("", title).casefold()
    found = _WORD.findall(query_parser.index_text(base))
    if not found:
        return base in " ".join(text.split())
    meaningful = [word for word in found if len(word) > 1 and word not in query_parser.STOP_WORDS]
    phrases = meaningful or [_BETWEEN.join(found)]
    # A truncated title may end within a word.
    ends = ["" if len(base) >= AUTOMATIC and phrase.endswith(found[-1]) else _END for phrase in phrases]
    return any(re.search(f"{_START}{phrase}{end}", text) for phrase, end in zip(phrases, ends, strict=True))


def clean_folder(folder: object) -> str:
    """Normalize an absolute path without `.`, `..` and redundant slashes, or raise InvalidArgument."""
    # A text far above the limit is refused without normalizing it.
    if "\0" in str(folder):
        raise validation.invalid("folder", "a path without NUL characters", folder)
    folder = validation.check_content(folder, "folder", 100 * MAX_FOLDER)
    # Both path styles on every host: the folder may be on another host.
    if posixpath.isabs(folder):
        cleaned = posixpath.normpath(folder)
    elif PureWindowsPath(folder).is_absolute():
        cleaned = ntpath.normpath(folder)
    else:
        raise validation.invalid("folder", "an absolute path", folder)
    if len(cleaned) > MAX_FOLDER:
        raise validation.invalid("folder", f"a path of at most {MAX_FOLDER:,} characters", cleaned)
    return cleaned


def clean_folder_or_none(folder: object) -> str | None:
    return clean_folder(folder) if folder is not None else None


def local_folder(folder: str | None) -> str | None:
    """Normalize a folder of this host; None if it cannot be stored."""
    try:
        return clean_folder(os.path.abspath(folder)) if folder is not None else None
    except (errors.InvalidArgument, OSError, ValueError):
        return None


def merge_metadata(tx: Tx, here: ConversationRow, patch: Mapping[str, Any]) -> dict[str, Any]:
    row = tx.one("metadata_get", key=here.key)
    merged: dict[str, Any] = merge_patch(message_codec.decode_metadata(row[0] if row else None, here.id), patch)
    tx.run("metadata_set", key=here.key, metadata=message_codec.encode_metadata(merged))
    return merged


def merge_patch(target: object, patch: object) -> Any:
    """Apply a JSON Merge Patch (RFC 7396)."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged
