"""Conversations for an editor to choose from: a page at a time, each once, and nobody else's."""

from __future__ import annotations

import pytest

from holdfast import errors
from holdfast.acp import server
from tests.support import acp_editor


async def test_conversations_are_listed_a_page_at_a_time_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PAGE_SIZE", 3)

    async with acp_editor.editor() as editor:
        for number in range(7):
            await editor.program.db.create_session(f"talk{number}", source="test")
            await editor.program.db.append_message(f"talk{number}", role="user", content="hi")
        seen, cursor = list[str](), dict[str, str]()
        while True:
            page = await editor.ask("session/list", cwd="/", **cursor)
            seen += [each["sessionId"] for each in page["sessions"]]
            assert all(each["cwd"] == "/" for each in page["sessions"])
            if "nextCursor" not in page:
                break
            cursor = {"cursor": page["nextCursor"]}
        assert sorted(seen) == [f"talk{number}" for number in range(7)]
        assert (await acp_editor.refusal(editor.ask("session/list", cursor="?"))).code == -32602


async def test_conversations_of_others_are_not_listed() -> None:
    async with acp_editor.editor() as editor:
        await editor.program.db.create_session("theirs", source="test", owner="telegram:7")
        await editor.program.db.append_message("theirs", role="user", content="hi")
        assert (await editor.ask("session/list"))["sessions"] == []
        for method in ("session/load", "session/resume", "session/fork"):
            refused = await acp_editor.refusal(editor.ask(method, sessionId="theirs", cwd="/", mcpServers=[]))
            assert refused.code == -32002
        assert editor.updates == []


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1.5", "١", "9" * 16])
def test_a_cursor_that_was_never_given_is_refused(cursor: str) -> None:
    with pytest.raises(errors.RpcRefused, match="cursor"):
        server._parse_cursor(cursor)
