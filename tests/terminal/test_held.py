"""A session that a client has open: whose turn runs, which end belongs to which prompt, what is wanted of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import events
from tests.support import rpc_client
from tests.support.chat import Dictated
from tests.support.compaction import fill


async def test_what_a_program_tells_is_a_turn_of_its_own_and_the_prompt_behind_it_has_its_own_end() -> None:
    async with rpc_client.client(["Saw it.", "Fine."]) as (desk, client):
        await fill(desk.db, 1)
        await desk.db.mail.add_inbox_entry("talk", "build", "The build ended.", kind="process")
        await client.ask("session.resume", session_id="talk")
        await client.ask("prompt.submit", session_id="talk", text="And now?", uid="mine")
        reply = await client.until("message.complete", uid="mine")
        assert reply["payload"]["text"] == "Fine."
        begun = [(each["payload"]["notice"], each["payload"]["text"]) for each in client.told("message.start")]
        assert begun == [("process", "The build ended."), ("", "And now?")]
        first, second = (each["payload"] for each in client.told("message.complete"))
        assert (first["text"], first["uid"] == client.told("message.start")[0]["payload"]["uid"]) == ("Saw it.", True)
        assert first["uid"] not in (None, "mine")
        assert second["uid"] == "mine"


async def test_a_prompt_of_somebody_else_is_told_by_its_own_uid() -> None:
    async with rpc_client.client(["a", "b"]) as (desk, client):
        await fill(desk.db, 1)
        await client.ask("session.resume", session_id="talk")
        other = desk.home.door.submit("talk", events.Submit("From elsewhere", "theirs"))
        await client.ask("prompt.submit", session_id="talk", text="From here", uid="ours")
        assert (await other).final_response == "a"
        await client.until("message.complete", uid="ours")
        ends = [(each["payload"]["uid"], each["payload"]["text"]) for each in client.told("message.complete")]
        assert ends == [("theirs", "a"), ("ours", "b")]


async def test_something_that_cannot_be_told_keeps_nothing_behind_it_from_being_told() -> None:
    async with rpc_client.client() as (desk, client):
        await fill(desk.db, 1)
        await client.ask("session.resume", session_id="talk")
        desk.home.door.publish("talk", events.Notice("\ud800 is no text"))
        desk.home.door.publish("talk", events.Notice("This is."))
        assert (await client.until("status"))["payload"]["text"] == "This is."


@pytest.mark.parametrize(("line", "said"), [("/stop", "Nothing is running."), ("/title  A\nplan", "Title: A plan")])
async def test_what_a_command_said_is_in_its_answer_whatever_it_is(line: str, said: str) -> None:
    async with rpc_client.client() as (desk, client):
        await fill(desk.db, 1)
        await client.ask("session.resume", session_id="talk")
        done = await client.ask("command.exec", session_id="talk", line=line)
        assert (done["ok"], done["output"]) == (True, [{"level": "info", "text": said}])


@pytest.mark.parametrize("title", ["", " \u200b\x07", "x" * 101, "x" * 1_000_000])
async def test_a_title_that_can_never_be_given_is_refused_when_it_is_wanted(title: str) -> None:
    async with rpc_client.client() as (desk, client):
        key = (await client.ask("session.create"))["session_id"]
        for method, given in (("session.create", {}), ("session.title", {"session_id": key})):
            refused = await rpc_client.refusal(client.ask(method, **given, title=title))
            assert (refused.code, refused.data) == (-32000, {"type": "InvalidArgument"})
        assert len([*desk.server._sessions]) == 1
        assert desk.home.door._titles == {}


@pytest.mark.parametrize("how", ["session.create", "session.title", "/title", "/new"])
async def test_a_title_that_is_wanted_is_told_as_it_will_be_given(how: str) -> None:
    async with rpc_client.client() as (_, client):
        odd = "\x1b]0;evil\x07 plan"
        first: dict[str, Any] = {"title": odd} if how == "session.create" else {}
        key = (await client.ask("session.create", **first))["session_id"]
        if how == "session.title":
            assert (await client.ask("session.title", session_id=key, title=odd))["title"] == "]0;evil plan"
        elif how.startswith("/"):
            done = await client.ask("command.exec", session_id=key, line=f"{how} {odd}")
            key = done["moved"]["session_id"] if done["moved"] else key
        assert (await client.ask("session.info", session_id=key))["pending_title"] == "]0;evil plan"


async def test_a_prompt_says_how_many_come_before_it_also_while_the_inbox_is_looked_at() -> None:
    reached, go = asyncio.Event(), asyncio.Event()
    model = Dictated()

    async with rpc_client.client(model=model) as (desk, client):
        works = desk.db.mail.inbox_entries

        async def slow(*given: Any) -> Any:
            reached.set()
            await go.wait()
            return await works(*given)

        key = (await client.ask("session.create"))["session_id"]
        desk.db.mail.inbox_entries = slow  # type: ignore[method-assign]
        queued = [(await client.ask("prompt.submit", session_id=key, text="a"))["queued"]]
        await reached.wait()
        queued.append((await client.ask("prompt.submit", session_id=key, text="b"))["queued"])
        go.set()
        await client.until("message.start")
        queued.append((await client.ask("prompt.submit", session_id=key, text="c"))["queued"])
        assert queued == [0, 1, 2]


async def test_whatever_is_wrong_with_what_is_told_is_logged_at_once_and_what_is_behind_it_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with rpc_client.client() as (desk, client):
        await fill(desk.db, 1)
        await client.ask("session.resume", session_id="talk")
        (session,) = desk.server._sessions
        tell = session._messages.build

        def breaks(event: events.AnyEvent, uid: str | None) -> Any:
            return {}[event.text] if event == events.Notice("This is odd.") else tell(event, uid)

        session._messages.build = breaks  # type: ignore[method-assign]
        for words in ("This is odd.", "This is not."):
            desk.home.door.publish("talk", events.Notice(words))
        assert (await client.until("status"))["payload"]["text"] == "This is not."
        (logged,) = (each for each in caplog.records if each.levelname == "ERROR")
        assert (logged.exc_info or (None,))[0] is KeyError


async def test_a_turn_that_breaks_down_after_its_end_was_told_has_no_second_end() -> None:
    async with rpc_client.client(["a", "b"]) as (desk, client):
        await fill(desk.db, 1)
        await client.ask("session.resume", session_id="talk")
        agent = await desk.home.door.agents.get("talk")
        works = agent.run_conversation

        async def breaks(*given: Any, **more: Any) -> Any:
            await works(*given, **more)
            raise ZeroDivisionError

        agent.run_conversation = breaks  # type: ignore[method-assign]
        await client.ask("prompt.submit", session_id="talk", text="a", uid="a")
        await client.until("error")
        del agent.run_conversation
        await client.say("talk", "b", uid="b")
        assert [each["payload"]["uid"] for each in client.told("message.complete")] == ["a", "b"]
