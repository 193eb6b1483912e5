"""Conversations for an editor to choose from: a page at a time, each once, and nobody else's."""

from __future__ import annotations

import pytest

from holdfast import errors
from holdfast.acp import session_list
from tests.acp import seat


def test_conversations_are_listed_a_page_at_a_time_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_list, "PAGE_SIZE", 3)

    async def story(editor: seat.Editor) -> None:
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
        assert (await seat.refusal(editor.ask("session/list", cursor="?"))).code == -32602

    seat.run(story)


def test_conversations_of_others_are_not_listed() -> None:
    async def story(editor: seat.Editor) -> None:
        await editor.program.db.create_session("theirs", source="test", owner="telegram:7")
        await editor.program.db.append_message("theirs", role="user", content="hi")
        assert (await editor.ask("session/list"))["sessions"] == []
        for method in ("session/load", "session/resume", "session/fork"):
            refused = await seat.refusal(editor.ask(method, sessionId="theirs", cwd="/", mcpServers=[]))
            assert refused.code == -32002
        assert editor.updates == []

    seat.run(story)


def test_a_conversation_that_moves_to_the_front_between_pages_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_list, "PAGE_SIZE", 2)

    async def story(editor: seat.Editor) -> None:
        db = editor.program.db
        for number in range(6):
            await db.create_session(f"talk{number}", source="test")
            await db.append_message(f"talk{number}", role="user", content="hi")
        first = await editor.ask("session/list")
        await db.append_message("talk1", role="user", content="again")
        await db.delete_conversation("talk5")
        second = await editor.ask("session/list", cursor=first["nextCursor"])
        third = await editor.ask("session/list", cursor=second["nextCursor"])
        pages = [[each["sessionId"] for each in page["sessions"]] for page in (first, second, third)]
        assert pages == [["talk5", "talk4"], ["talk3", "talk2"], ["talk0"]]
        assert "nextCursor" not in third

    seat.run(story)


@pytest.mark.parametrize("cursor", ["", "50", "1 0x1p+3", "x 0x1p+3 a", "1 0x1p+9999 a", "1 zp+1 a", "1 nan a"])
def test_a_cursor_that_was_never_given_is_refused(cursor: str) -> None:
    with pytest.raises(errors.RpcRefused, match="cursor"):
        session_list.parse_cursor(cursor)
