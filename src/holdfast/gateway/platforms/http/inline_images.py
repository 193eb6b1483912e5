"""Pictures of an answer, for whoever reads text only: a small one stands in it, of a large one it is said."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import partial

from holdfast import errors, types
from holdfast.store import async_db, db

SMALL = 256 * 1024
"""Bytes of a picture that stands in the text itself."""
LARGE = "[A picture, {kind}, {size:,} bytes: it is in the conversation.]"
GONE = "[A picture that is not there any more.]"
SHOWN = re.compile(r"!\[[^][]*\]\([^][()]*\)|\[A picture[^][]*\]")
"""A picture in a text, wherever it is: clients replace the data by an address of their own. Its time is linear."""
_KIND = re.compile(r"image/[a-z0-9.+-]{1,40}")


async def shown(store: async_db.AsyncSessionDB, digests: Sequence[str]) -> str:
    """These pictures as Markdown, a paragraph for each."""
    return "\n\n".join([await store.run(partial(_one, store.db, digest)) for digest in digests])


def _one(store: db.SessionDB, digest: str) -> str:
    try:
        blob = store.blobs.get(digest)
        return GONE if blob is None else _told(store, blob)
    except (errors.NotFound, errors.BlobDamaged):
        return GONE


def _told(store: db.SessionDB, blob: types.Blob) -> str:
    kind = blob.media_type if _KIND.fullmatch(blob.media_type) else "of an unknown kind"
    if blob.size > SMALL or kind != blob.media_type:
        return LARGE.format(kind=kind, size=blob.size)
    with store.blobs.open(blob.digest) as content:
        return f"![A picture](data:{kind};base64,{base64.b64encode(content.read()).decode()})"
