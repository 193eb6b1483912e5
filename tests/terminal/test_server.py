"""The server for front ends of their own: what a client may ask of a session, and what it is told."""

from __future__ import annotations

import asyncio
import base64
import struct
import zlib
from typing import Any

import pytest

from holdfast import content_parts, errors, events, types
from holdfast.model import base
from holdfast.rpc_server import wire_types
from holdfast.runtime import subscriptions
from tests.support import approvals, rpc_client
from tests.support.chat import Dictated
from tests.support.compaction import FakeSummarizer, blocked_summary, fill


def png() -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(b"\0\0\0\0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")


PICTURE = {"data": base64.b64encode(png()).decode()}


async def opened(client: rpc_client.Caller, **given: Any) -> str:
    key: str = (await client.ask("session.create", **given))["session_id"]
    return key


# --- prompts -------------------------------------------------------------------------------------------


async def test_a_prompt_during_a_turn_is_queued_and_each_has_one_end_in_order(store: str) -> None:
    model = Dictated()

    async with rpc_client.client(model=model, target=store) as (_, client):
        key = await opened(client)
        sent = [await client.ask("prompt.submit", session_id=key, text=f"{n}", uid=f"u{n}") for n in range(3)]
        assert [each["queued"] for each in sent] == [0, 1, 2]
        model.say("a", None, "b", None, "c", None)
        await client.until("message.complete", uid="u2")
        ended = [(each["payload"]["uid"], each["payload"]["text"]) for each in client.told("message.complete")]
        assert ended == [("u0", "a"), ("u1", "b"), ("u2", "c")]
        begun = [(each["payload"]["uid"], each["payload"]["text"]) for each in client.told("message.start")]
        assert begun == [("u0", "0"), ("u1", "1"), ("u2", "2")]


async def test_prompts_that_are_sent_at_once_are_answered_in_the_order_they_were_sent() -> None:
    async with rpc_client.client(["ok"] * 6) as (_, client):
        key = await opened(client)
        slow = client.asking("prompt.submit", session_id=key, text="first", images=[PICTURE])
        quick = [client.asking("prompt.submit", session_id=key, text=f"{number}") for number in range(5)]
        await asyncio.gather(slow, *quick)
        for _ in range(6):
            await client.until("message.complete")
        said = [each["payload"]["text"] for each in client.told("message.start")]
        assert said == ["first", "0", "1", "2", "3", "4"]


async def test_a_session_does_not_wait_for_another_one() -> None:
    model = Dictated()

    async with rpc_client.client(model=model) as (_, client):
        one, two = await opened(client), await opened(client)
        await client.ask("prompt.submit", session_id=one, text="slow")
        await client.until("message.start", text="slow")
        await client.ask("prompt.submit", session_id=two, text="quick")
        await client.until("message.start", text="quick")
        model.say("done", None)
        # Whoever of the two models gets the words: one turn ends while the other goes on.
        ended = await client.until("message.complete")
        assert ended["session_id"] in (one, two)
        assert len(client.told("message.complete")) == 1
        model.say("done", None)
        await client.until("message.complete")


async def test_the_same_uid_again_is_the_same_message() -> None:
    async with rpc_client.client(["one", "two"]) as (desk, client):
        key = await opened(client)
        for _ in range(2):
            reply = await client.say(key, "Hello", uid="mine")
            assert (reply["payload"]["text"], reply["payload"]["status"]) == ("one", "completed")
        assert len(await desk.db.transcript(key)) == 2


async def test_a_prompt_that_is_dropped_from_the_queue_has_its_end_too() -> None:
    model = Dictated()

    async with rpc_client.client(model=model) as (_, client):
        key = await opened(client)
        await client.ask("prompt.submit", session_id=key, text="a", uid="a")
        await client.until("message.start")
        await client.ask("prompt.submit", session_id=key, text="b", uid="b")
        done = await client.ask("command.exec", session_id=key, line="/queue drop 1")
        assert (done["ok"], done["output"]) == (True, [{"level": "answer", "text": "Dropped: b"}])
        assert (await client.until("message.complete", uid="b"))["payload"]["status"] == "dropped"
        model.say("ok", None)
        assert (await client.until("message.complete", uid="a"))["payload"]["status"] == "completed"
        # What a command answered is in its answer, and not told once more.
        assert client.told("status") == []


@pytest.mark.parametrize("fault", [errors.RequestRefused("No."), ZeroDivisionError("inside")])
async def test_a_turn_that_fails_has_its_end_and_the_next_is_answered(fault: Exception) -> None:
    async with rpc_client.client([fault, "ok"]) as (_, client):
        key = await opened(client)
        failed = (await client.say(key, "a", uid="a"))["payload"]
        assert (failed["uid"], failed["status"] in ("model", "failed"), bool(failed["error"])) == ("a", True, True)
        assert "inside" not in str(client.events)
        assert (await client.say(key, "b"))["payload"]["text"] == "ok"
        assert len(client.told("message.complete")) == 2


async def test_an_interrupt_stops_the_turn_and_keeps_what_was_said() -> None:
    model = Dictated()

    async with rpc_client.client(model=model) as (_, client):
        key = await opened(client)
        assert not (await client.ask("session.interrupt", session_id=key))["interrupted"]
        await client.ask("prompt.submit", session_id=key, text="Hello")
        model.say("Once upon")
        await client.until("message.delta")
        assert (await client.ask("session.interrupt", session_id=key))["interrupted"]
        ended = (await client.until("message.complete"))["payload"]
        assert (ended["status"], ended["text"].splitlines()[0], ended["partial"]) == ("interrupted", "Once upon", True)


async def test_a_prompt_that_is_stopped_before_its_turn_began_has_its_end() -> None:
    async with rpc_client.client(["a"]) as (desk, client):
        key = await opened(client)
        sent = client.asking("prompt.submit", session_id=key, text="Hello", uid="early")
        while not desk.home.door.running(key):
            await asyncio.sleep(0)
        assert desk.home.door.interrupt(key)
        await sent
        ended = (await client.until("message.complete"))["payload"]
        assert (ended["uid"], ended["status"], ended["last_seq"]) == ("early", "interrupted", None)
        assert client.told("message.start") == []
        assert await rpc_client.no_row(desk.db, key)


async def test_steering_tells_the_running_turn_and_without_one_it_is_a_prompt() -> None:
    reached, go = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        reached.set()
        await go.wait()
        return "done"

    async with rpc_client.client([approvals.runs("true"), "ok", "Yes."], shell=approvals.Shell(wait), yes=True) as (
        desk,
        client,
    ):
        key = await opened(client)
        await client.ask("prompt.submit", session_id=key, text="Hello")
        await reached.wait()
        told = await client.ask("session.steer", session_id=key, text="Be brief.")
        assert told == {"session_id": key, "steered": True, "prompt": None}
        go.set()
        await client.until("message.complete")
        assert "Be brief." in str(desk.home.model.requests[-1].messages)
        became = await client.ask("session.steer", session_id=key, text="Another thing.", uid="s")
        assert (became["steered"], became["prompt"]["uid"]) == (False, "s")
        assert (await client.until("message.complete", uid="s"))["payload"]["text"] == "Yes."


async def test_a_client_that_does_not_read_is_told_the_whole_and_fewer_pieces() -> None:
    pieces = [base.ContentDelta(f"{number} ") for number in range(1000)]

    async with rpc_client.client([[*pieces, base.FinishDelta("stop")]]) as (desk, client):
        key = await opened(client)
        await client.ask("prompt.submit", session_id=key, text="Count.")
        client.reads.clear()
        await desk.home.door.wait_idle(key)
        client.reads.set()
        whole = (await client.until("message.complete"))["payload"]["text"]
        told = [each["payload"]["text"] for each in client.told("message.delta")]
        assert whole == "".join(each.text for each in pieces)
        assert "".join(told) == whole
        assert len(told) < 2 * subscriptions.COALESCE_AT


# --- options -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("progress", "shown"),
    [("all", ["start", "start", "complete", "complete"]), ("new", ["start", "complete"]), ("off", [])],
)
async def test_tools_are_told_of_as_the_client_wants(progress: str, shown: list[str]) -> None:
    script = [approvals.runs("echo a long line that does not fit", "c1"), approvals.runs("true", "c2"), "ok"]
    async with rpc_client.client(script, yes=True) as (desk, client):
        key = await opened(client, options={"tool_progress": progress, "columns": 20})
        await client.say(key, "Hello")
        told = client.told("tool.start", "tool.complete")
        assert sorted(each["type"].removeprefix("tool.") for each in told) == sorted(shown)
        assert all(len(each["payload"]["line"]) <= 20 for each in told)
        assert len(desk.home.shell.ran) == 2


@pytest.mark.parametrize("shows", [True, False])
async def test_what_the_model_thinks_is_told_only_where_that_is_wanted(shows: bool) -> None:
    async with rpc_client.client([base.Reply((content_parts.Reasoning("Hm."), content_parts.Text("Yes.")))]) as (
        _,
        client,
    ):
        key = await opened(client)
        chosen = await client.ask("session.options", session_id=key, options={"show_reasoning": shows})
        assert chosen["options"] == {"columns": 80, "show_reasoning": shows, "tool_progress": "all", "images": 0}
        await client.say(key, "Hello")
        kinds = [(each["payload"]["kind"], each["payload"]["text"]) for each in client.told("message.delta")]
        assert kinds == [*([("reasoning", "Hm.")] if shows else []), ("text", "Yes.")]


async def test_attached_images_go_with_the_next_prompt_and_with_no_other() -> None:
    async with rpc_client.client(["A dot.", "Nothing."]) as (desk, client):
        key = await opened(client, options={"images": [PICTURE]})
        assert (await client.ask("session.info", session_id=key))["options"]["images"] == 1
        await client.say(key, "What is it?", images=[PICTURE])
        await client.say(key, "And now?")
        first, _, second, _ = await desk.db.transcript(key)
        kinds = [each["type"] for each in first.content if isinstance(each, dict)]
        assert kinds == ["note", "text", "image", "image"]
        assert second.content == "And now?"
        assert (await client.ask("session.info", session_id=key))["options"]["images"] == 0
        assert content_parts.text(first.content) == "What is it?"


@pytest.mark.parametrize(
    ("data", "why"), [("%%%", "base64"), ("AAAA", "not a valid PNG"), (PICTURE["data"][:40], "not a valid PNG")]
)
async def test_an_image_that_does_not_hold_together_is_refused_and_nothing_is_sent(data: str, why: str) -> None:
    async with rpc_client.client() as (desk, client):
        key = await opened(client)
        for asking in (
            client.ask("prompt.submit", session_id=key, text="Look", images=[{"data": data}]),
            client.ask("session.options", session_id=key, options={"images": [{"data": data}]}),
            client.ask("session.create", options={"images": [{"data": data}]}),
        ):
            refused = await rpc_client.refusal(asking)
            assert (refused.code, why in str(refused)) == (-32602, True)
        assert await rpc_client.no_row(desk.db, key)
        assert [session.key for session in desk.server._sessions] == [key]


# --- what else may be asked ----------------------------------------------------------------------------


async def test_the_transcript_comes_in_stretches_that_fit() -> None:
    async with rpc_client.client() as (desk, client):
        await fill(desk.db, 30)
        await client.ask("session.resume", session_id="talk")
        seen: list[int] = []
        more = True
        while more:
            after = seen[-1] if seen else 0
            part = await client.ask("session.history", session_id="talk", after=after, limit=25)
            seen += [each["seq"] for each in part["messages"]]
            more = part["more"]
        assert seen == list(range(1, 61))
        await desk.db.append_messages("talk", [types.NewMessage(role="user", content="x" * 700_000)] * 1)
        await desk.db.append_messages("talk", [types.NewMessage(role="user", content="y" * 700_000)] * 1)
        part = await client.ask("session.history", session_id="talk", after=60)
        assert ([each["seq"] for each in part["messages"]], part["more"], part["last_seq"]) == ([61], True, 62)


async def test_an_undo_is_told_and_shows_in_the_transcript() -> None:
    async with rpc_client.client(["a", "b"]) as (_, client):
        key = await opened(client)
        refused = await rpc_client.refusal(client.ask("session.undo", session_id=key))
        assert refused.code == -32000
        await client.say(key, "One")
        await client.say(key, "Two")
        assert "Undone" in (await client.ask("session.undo", session_id=key))["text"]
        said = (await client.ask("session.history", session_id=key))["messages"]
        assert [each["taken_back"] for each in said] == [False, False, True, True]
        assert (await rpc_client.refusal(client.ask("session.undo", session_id=key, turns=5))).code == -32000


async def test_a_compaction_says_what_became_of_it_and_everybody_is_told() -> None:
    async with rpc_client.client(summarizer=FakeSummarizer()) as (desk, client):
        other = await desk.caller()
        await fill(desk.db, 50)
        for each in (client, other):
            await each.ask("session.resume", session_id="talk")
        made = await client.ask("session.compress", session_id="talk", focus="pier 3", keep_exchanges=3)
        assert (made["outcome"], made["cut_seq"], made["after"] < made["before"]) == ("compacted", 94, True)
        for each in (client, other):
            told = await each.until("status", kind="compacted")
            assert told["session_id"] == made["session_id"]
        assert (await client.ask("session.info", session_id="talk"))["compacted_to"] == 94
        again = await client.ask("session.compress", session_id="talk", keep_exchanges=3)
        assert (again["outcome"], again["session_id"]) == ("nothing_to_do", made["session_id"])
        key = await opened(client)
        assert (await rpc_client.refusal(client.ask("session.compress", session_id=key))).code == -32000


async def test_a_compaction_that_is_not_wanted_any_more_stops() -> None:
    slow, reached, _ = blocked_summary()

    async with rpc_client.client(["ok"], summarizer=FakeSummarizer(slow), background=False) as (desk, client):
        await fill(desk.db, 50)
        await client.ask("session.resume", session_id="talk")
        made = client.asking("session.compress", session_id="talk")
        await reached.wait()
        client.cancel(made)
        assert (await made)["error"]["code"] == -32800
        assert await desk.db.get_compression_lock_holder("talk") is None
        assert (await client.say("talk", "Hello"))["payload"]["text"] == "ok"
        assert len(await desk.db.sessions("talk")) == 1


async def test_a_branch_is_open_beside_where_it_came_from() -> None:
    async with rpc_client.client(["a", "b", "c"]) as (_, client):
        key = await opened(client)
        await client.say(key, "Hello")
        made = await client.ask("session.branch", session_id=key, title="Other way")
        assert (made["title"], made["conversation_id"] != key, made["last_seq"]) == ("Other way", True, 2)
        assert (await client.say(made["session_id"], "There"))["payload"]["text"] == "b"
        assert (await client.say(key, "Here"))["payload"]["text"] == "c"
        assert (
            await rpc_client.refusal(client.ask("session.branch", session_id=key, title="Other way"))
        ).code == -32000


async def test_sessions_are_listed_and_opened_by_id_beginning_and_title() -> None:
    async with rpc_client.client() as (desk, client):
        for name in ("alpha_1", "alpha_2"):
            await desk.db.create_session(name, source="test", title=f"Title of {name}")
            await desk.db.append_messages(name, [types.NewMessage(role="user", content="Hello")])
        await client.ask("session.resume", session_id="alpha_1")
        listed = (await client.ask("session.list"))["sessions"]
        assert {each["session_id"]: each["open"] for each in listed} == {"alpha_1": True, "alpha_2": False}
        assert len((await client.ask("session.list", limit=1, skip=1))["sessions"]) == 1
        assert (await client.ask("session.resume", session_id="title of ALPHA_2"))["session_id"] == "alpha_2"
        ambiguous = await rpc_client.refusal(client.ask("session.resume", session_id="alpha"))
        assert (ambiguous.code, sorted(ambiguous.data["candidates"])) == (-32003, ["alpha_1", "alpha_2"])
        missing = await rpc_client.refusal(client.ask("session.resume", session_id="nobody"))
        assert (missing.code, missing.data) == (-32003, {"type": "NoSuchSession"})


async def test_commands_answer_submit_move_and_quit() -> None:
    async with rpc_client.client(["a", "b", "c"]) as (_, client):
        key = await opened(client)
        await client.say(key, "Hello")
        helped = await client.ask("command.exec", session_id=key, line="/help")
        assert (helped["ok"], "/compact" in helped["output"][0]["text"]) == (True, True)
        unknown = await client.ask("command.exec", session_id=key, line="/hepl")
        assert (unknown["ok"], unknown["output"][0]["level"]) == (False, "error")
        again = await client.ask("command.exec", session_id=key, line="/retry")
        assert (await client.until("message.complete", uid=again["prompt"]["uid"]))["payload"]["text"] == "b"
        new = await client.ask("command.exec", session_id=key, line="/new Fresh")
        assert (new["moved"]["begun"], new["moved"]["pending_title"]) == (False, "Fresh")
        assert (await client.say(new["moved"]["session_id"], "Hi"))["payload"]["text"] == "c"
        assert (await client.ask("command.exec", session_id=key, line="/quit"))["quit"]
        assert (await rpc_client.refusal(client.ask("command.exec", session_id=key, line="/a/path"))).code == -32602
        assert (await rpc_client.refusal(client.ask("command.exec", session_id=key, line="words"))).code == -32602
        assert client.told("error") == []


async def test_what_one_client_does_another_one_of_the_same_conversation_sees() -> None:
    async with rpc_client.client(["a", "b"]) as (desk, client):
        other = await desk.caller()
        key = await opened(client)
        await client.say(key, "Hello", uid="u1")
        await other.ask("session.resume", session_id=key)
        await client.say(key, "Again", uid="u2")
        assert (await other.until("message.start"))["payload"]["text"] == "Again"
        assert (await other.until("message.complete", uid="u2"))["payload"]["text"] == "b"
        await client.ask("session.title", session_id=key, title="Named")
        await other.until("session.info", title="Named")
        await client.ask("command.exec", session_id=key, line="/status")
        assert "scripted/model" in (await other.until("status", kind="answer"))["payload"]["text"]


# --- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("session.create", {"titel": "x"}),
        ("session.create", {"options": {"columns": 3}}),
        ("session.create", {"options": {"tool_progress": "some"}}),
        ("session.list", {"limit": 0}),
        ("session.resume", {}),
        ("session.resume", {"session_id": ""}),
        ("prompt.submit", {"session_id": "KEY", "text": " "}),
        ("prompt.submit", {"session_id": "KEY", "text": None}),
        ("prompt.submit", {"session_id": "KEY", "text": "x", "uid": ""}),
        ("prompt.submit", {"session_id": "KEY", "text": "x", "images": [PICTURE] * 9}),
        ("session.history", {"session_id": "KEY", "after": -1}),
        ("session.undo", {"session_id": "KEY", "turns": "2"}),
        ("approval.respond", {"session_id": "KEY", "request_id": "x", "answer": "yes"}),
    ],
)
async def test_parameters_that_cannot_be_meant_are_refused(method: str, params: dict[str, Any]) -> None:
    async with rpc_client.client() as (desk, client):
        key = await opened(client)
        given = {name: key if value == "KEY" else value for name, value in params.items()}
        assert (await rpc_client.refusal(client.ask(method, **given))).code == -32602
        assert await rpc_client.no_row(desk.db, key)


async def test_what_another_client_has_open_is_not_open_here() -> None:
    async with rpc_client.client(["a"]) as (desk, client):
        other = await desk.caller()
        key = await opened(client)
        assert (await rpc_client.refusal(other.ask("prompt.submit", session_id=key, text="x"))).code == -32003
        await client.say(key, "Hello")
        for method, more in (("prompt.submit", {"text": "x"}), ("session.close", {}), ("session.interrupt", {})):
            refused = await rpc_client.refusal(other.ask(method, session_id=key, **more))
            assert (refused.code, "session.resume" in str(refused)) == (-32002, True)
        assert (await desk.db.head(key)).live


async def test_a_conversation_that_was_deleted_is_refused_and_can_be_closed() -> None:
    async with rpc_client.client(["a", "b"]) as (desk, client):
        key = await opened(client)
        await client.say(key, "Hello")
        await desk.db.delete_conversation(key)
        refused = await rpc_client.refusal(client.ask("session.history", session_id=key))
        assert (refused.code, refused.data) == (-32000, {"type": "ConversationDeleted"})
        failed = (await client.say(key, "Again"))["payload"]
        assert (failed["status"] != "completed", bool(failed["error"])) == (True, True)
        assert await client.ask("session.close", session_id=key) == {"session_id": key, "ended": False}


async def test_the_server_says_what_it_is_before_it_is_asked() -> None:
    async with rpc_client.client() as (_, client):
        about = await client.ask("server.info")
        assert client.events[0] == {"type": "ready", "session_id": None, "payload": about}
        assert [client.frames[0].get("method"), *client.frames[1:]] == ["event", *client.answers]
        assert (about["protocol"], about["methods"]) == (1, [*wire_types.METHODS])


async def test_a_command_that_is_told_to_its_sender_first_is_told_to_all() -> None:
    async with rpc_client.client() as (desk, _):
        order: list[str] = []
        door = desk.home.door
        with door.subscribe("talk", on_event=lambda _: order.append("everybody")):
            await door.send("talk", events.Command("/status"), on_output=lambda _: order.append("sender"))
            door.publish("talk", events.Notice("x"))
        assert order == ["sender", "everybody", "everybody"]
