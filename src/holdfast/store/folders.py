"""Folders belong to the conversation: where its work is done, for lists to choose by. Nothing is read or written there.

A store may be shared by hosts, and an export goes from one to another: a folder is absolute on some of them, and is
never looked for. It is compared as it is spelled.
"""

from __future__ import annotations

import ntpath
import os
import posixpath
from pathlib import PureWindowsPath

from holdfast import errors
from holdfast.store import conversation_row
from holdfast.store.driver import Driver, Tx

MAX_FOLDER = 4096


class Folders:
    """The part of SessionDB that knows where conversations are worked on."""

    driver: Driver

    def set_session_folder(self, session_id: str, folder: str | None) -> str | None:
        """The conversation's folder, an absolute path, cleaned; None: it has none any more.

        Nobody has to be there, nor does the folder, and whoever works on the conversation is not hindered. Raises
        FolderInvalid, a ValueError.
        """
        cleaned = clean_or_none(folder)
        self.driver.write("folder", lambda tx: set_folder(tx, session_id, cleaned))
        return cleaned


def clean(folder: object) -> str:
    """The folder as it is kept, without `.`, `..` and doubled or last slashes; or FolderInvalid."""
    if not isinstance(folder, str):
        raise errors.FolderInvalid(f"A folder is text, not {errors.shown(folder)}.")
    # Far longer than any folder: say so without looking at every character of it.
    if len(folder) > 100 * MAX_FOLDER:
        raise errors.FolderInvalid(f"The folder has {len(folder):,} characters; at most {MAX_FOLDER:,} are kept.")
    if "\0" in folder or not _is_unicode(folder):
        raise errors.FolderInvalid(f"The folder {errors.shown(folder)} has characters that no store keeps.")
    # Whatever this host is: what was begun on another one is still begun there.
    if posixpath.isabs(folder):
        cleaned = posixpath.normpath(folder)
    elif PureWindowsPath(folder).is_absolute():
        cleaned = ntpath.normpath(folder)
    else:
        raise errors.FolderInvalid(f"{errors.shown(folder)} is no absolute path.")
    if len(cleaned) > MAX_FOLDER:
        raise errors.FolderInvalid(f"The folder has {len(cleaned):,} characters; at most {MAX_FOLDER:,} are kept.")
    return cleaned


def clean_or_none(folder: object) -> str | None:
    return clean(folder) if folder is not None else None


def kept(folder: str | None) -> str | None:
    """A folder of this host as a store keeps it; None where it cannot: nobody's work hangs on that."""
    try:
        return clean(os.path.abspath(folder)) if folder is not None else None
    except (errors.FolderInvalid, OSError, ValueError):
        return None


def _is_unicode(text: str) -> bool:
    """The name of a folder may be bytes that are none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def set_folder(tx: Tx, session_id: str, folder: str | None) -> None:
    tx.run("folder_set", key=conversation_row.lock(tx, session_id).key, folder=folder)
