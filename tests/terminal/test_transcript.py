"""The transcript as a client gets it: a stretch is as long as fits into one answer, as it goes over the wire."""

from __future__ import annotations

import json

from holdfast import AsyncSessionDB, types
from holdfast.rpc_server import session_info, wire_types


async def test_a_stretch_is_no_longer_on_the_wire_than_it_may_be(db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="test")
    said = [types.NewMessage(role="user", content="x" * 150_000) for _ in range(9)]
    for each in said:
        await db.append_messages("talk", [each])
    found: list[wire_types.TranscriptMessage] = []
    while len(found) < len(said):
        after = found[-1].seq if found else 0
        part = await session_info.read_transcript(db, await db.conversation("talk"), after, 200)
        sent = sum(len(each.text) + len(json.dumps(each.content)) for each in part)
        assert session_info.MAX_PAGE_CHARACTERS / 2 < sent <= session_info.MAX_PAGE_CHARACTERS
        found += part
    assert [each.seq for each in found] == [*range(1, 10)]
