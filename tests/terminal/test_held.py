"""A session that a client has open: whose turn it is that runs, and which end belongs to which prompt."""

from __future__ import annotations

from holdfast import events
from tests.compaction.test_compress import filled
from tests.terminal import calling


def test_what_a_program_tells_is_a_turn_of_its_own_and_the_prompt_behind_it_has_its_own_end() -> None:
    async def story(desk: calling.Desk, client: calling.Caller) -> None:
        await filled(desk.db, 1)
        await desk.db.receive("talk", "build", "The build ended.", kind="process")
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

    calling.run(story, ["Saw it.", "Fine."])


def test_a_prompt_of_somebody_else_is_told_by_its_own_uid() -> None:
    async def story(desk: calling.Desk, client: calling.Caller) -> None:
        await filled(desk.db, 1)
        await client.ask("session.resume", session_id="talk")
        other = desk.home.door.submit("talk", events.Submit("From elsewhere", "theirs"))
        await client.ask("prompt.submit", session_id="talk", text="From here", uid="ours")
        assert (await other).final_response == "a"
        await client.until("message.complete", uid="ours")
        ends = [(each["payload"]["uid"], each["payload"]["text"]) for each in client.told("message.complete")]
        assert ends == [("theirs", "a"), ("ours", "b")]

    calling.run(story, ["a", "b"])


def test_something_that_cannot_be_told_keeps_nothing_behind_it_from_being_told() -> None:
    async def story(desk: calling.Desk, client: calling.Caller) -> None:
        await filled(desk.db, 1)
        await client.ask("session.resume", session_id="talk")
        desk.home.door.tell("talk", events.Notice("\ud800 is no text"))
        desk.home.door.tell("talk", events.Notice("This is."))
        assert (await client.until("status"))["payload"]["text"] == "This is."

    calling.run(story)
