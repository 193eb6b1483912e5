"""The patterns of digests and media types in the lines of an export."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.store.transfer import jsonl

SEALED = b'{"kind":"sealed","id":"c","sessions":1,"messages":1,"digest":"%s"}'
END = b'{"kind":"end","conversations":1,"digest":"%s"}'
BLOB = b'{"kind":"blob","digest":"%s"}'
TYPED = b'{"kind":"blob","digest":"' + b"a" * 64 + b'","size":1,"media_type":"%s"}'

FIELDS = {
    "seal": (SEALED, b"a" * 32),
    "end": (END, b"a" * 32),
    "blob": (BLOB, b"a" * 64),
    "media type": (TYPED, b"image/png"),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("spoiled", [b"%s\\n", b"\\n%s", b"%s\\u0000", b" %s"])
def test_pattern_matches_the_whole_value(field: str, spoiled: bytes) -> None:
    line, value = FIELDS[field]
    jsonl.decode(line % value)
    with pytest.raises(msgspec.ValidationError):
        jsonl.decode(line % (spoiled % value))
