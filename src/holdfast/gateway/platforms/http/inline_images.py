"""Attachments of an answer as Markdown: a small image is embedded, others are described."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import partial

from holdfast import errors, types
from holdfast.store import async_db, db

MAX_EMBEDDED = 256 * 1024
"""The largest embedded image in bytes."""
LARGE = "[Image, {kind}, {size:,} bytes: see the conversation.]"
FILE = "[File, {kind}, {size:,} bytes: files are not sent over HTTP.]"
MISSING = "[Image: no longer available.]"
MARKDOWN = re.compile(r"!\[[^][]*\]\([^][()]*\)|\[(?:Image|File)[^][]*\]")
"""An attachment in a text. Clients replace embedded data by an address. Matching takes linear time."""
_KIND = re.compile(r"image/[a-z0-9.+-]{1,40}")


async def render_all(store: async_db.AsyncSessionDB, digests: Sequence[str]) -> str:
    """Return attachments as Markdown, one paragraph each."""
    return "\n\n".join([await store.run(partial(_render, store.db, digest)) for digest in digests])


def _render(store: db.SessionDB, digest: str) -> str:
    try:
        blob = store.blobs.get(digest)
        return MISSING if blob is None else _render_blob(store, blob)
    except (errors.NotFound, errors.BlobDamaged):
        return MISSING


def _render_blob(store: db.SessionDB, blob: types.Blob) -> str:
    if not blob.media_type.startswith("image/"):
        return FILE.format(kind=blob.media_type, size=blob.size)
    kind = blob.media_type if _KIND.fullmatch(blob.media_type) else "unknown type"
    if blob.size > MAX_EMBEDDED or kind != blob.media_type:
        return LARGE.format(kind=kind, size=blob.size)
    with store.blobs.open(blob.digest) as content:
        return f"![Image](data:{kind};base64,{base64.b64encode(content.read()).decode()})"
