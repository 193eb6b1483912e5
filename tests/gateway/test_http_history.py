"""A client that sends its whole history continues one conversation, and never another one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import AsyncSessionDB, content_parts, errors, types
from holdfast.gateway.platforms.http import chat_completions, chat_requests, inline_images, request_history
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from tests.support import backends, conversations, gateways, http_gateway
from tests.support.agents import calls, says
from tests.support.http_gateway import ANN, BOB, Web, echo, error_of, message_words, open_web, streamed_text, text_of
from tests.support.polling import until_async

TITLE = "### Task:\nGenerate a concise, 3-5 word title.\n### Chat History:\n<chat_history>\nUSER: Hi\n</chat_history>"
FOLLOW_UP = "### Task:\nSuggest 3-5 relevant follow-up questions.\n<chat_history>\nUSER: Hi\n</chat_history>"
LIBRECHAT = "Provide a concise, 5-word-or-less title for the conversation, using title case conventions."
LOOKS = msgspec.structs.replace(calls("look"), parts=(content_parts.Text("Let me look."),))


class Client:
    """A client such as Open WebUI: it keeps the chat itself and sends all of it with every request."""

    def __init__(self, web: Web, headers: Mapping[str, str] = ANN, history: list[str] | None = None) -> None:
        self._web, self._headers = web, headers
        self.said = history or []
        self.ids: list[str] = []

    async def say(self, text: str, **given: Any) -> str:
        answered = await self._web.ask(*self.said, text, headers=self._headers, **given)
        heard = streamed_text(answered) if given.get("stream") else text_of(answered)
        self.said += [text, heard]
        self.ids.append(answered.headers["x-conversation-id"])
        return heard


async def read_all(db: AsyncSessionDB) -> dict[str, list[str]]:
    """Return the texts of every conversation."""
    found = await db.list_sessions(limit=500)
    return {each.conversation_id: [message_words(one) for one in await db.transcript(each.id)] for each in found}


def repeat(reply: Any) -> ScriptedModel:
    return ScriptedModel(iter(lambda: reply, None))


@pytest.mark.parametrize("backend", backends.SHARED, ids=lambda backend: backend.name)
async def test_requests_with_the_whole_history_are_one_conversation(backend: backends.Backend, tmp_path: Path) -> None:
    async with gateways.store(backend.target(tmp_path, "store")) as db:
        async with open_web(db, repeat(echo)) as web:
            chat = Client(web)
            for number in range(12):
                assert await chat.say(f"{number}", stream=bool(number % 2)) == f"Re: {number}"
                for side in (TITLE, FOLLOW_UP) if number < 2 else ():
                    assert text_of(await web.ask(side)) == f"Re: {side}"
                if number == 8:
                    await db.run(lambda: conversations.compact(db.db, chat.ids[0], 12))
                    await db.mail.expire(0)
        async with open_web(db, repeat(echo)) as web:
            again, other = Client(web, ANN | {"idempotency-key": "x"}, chat.said), Client(web, BOB, list(chat.said))
            await other.say("mine")
            await again.say("after a restart")
        assert (await db.conversation(other.ids[0])).owner == "http:bob"
        assert await db.branches(chat.ids[0]) == []
        assert {*chat.ids, *again.ids} == {chat.ids[0]}
        assert await read_all(db) == {chat.ids[0]: chat.said, other.ids[0]: other.said}


async def test_edited_or_regenerated_message_begins_a_branch(db: AsyncSessionDB) -> None:
    answers = ["One.", "Two.", "Three.", "Other two.", "Other three.", "Anew."]
    async with open_web(db, ScriptedModel(answers)) as web:
        chat = Client(web)
        for text in ("1", "2", "3"):
            await chat.say(text)
        edited, begun_again = Client(web, history=chat.said[:2]), Client(web)
        await edited.say("2")
        await edited.say("3")
        await begun_again.say("1")
    assert chat.ids[0] != edited.ids[0] == edited.ids[1] != begun_again.ids[0]
    assert await read_all(db) == {
        chat.ids[0]: chat.said,
        edited.ids[0]: ["1", "One.", "2", "Other two.", "3", "Other three."],
        begun_again.ids[0]: begun_again.said,
    }
    assert (await db.branches(chat.ids[0])) == [edited.ids[0]]


async def test_concurrent_requests_with_one_history_do_not_share_a_conversation(db: AsyncSessionDB) -> None:
    async with open_web(db, repeat(echo)) as web:
        chat = Client(web)
        await chat.say("Hi")
        several = [Client(web, history=list(chat.said)) for _ in range(5)]
        await asyncio.gather(*(each.say(f"{number}") for number, each in enumerate(several)))
    assert len({each.ids[0] for each in several}) == 5
    assert chat.ids[0] in {each.ids[0] for each in several}
    assert sorted((await read_all(db)).values()) == sorted(each.said for each in several)


async def test_turn_that_ends_during_a_lookup_is_noticed(db: AsyncSessionDB, monkeypatch: pytest.MonkeyPatch) -> None:
    model, is_busy = gateways.HeldModel("Hello!", "One.", "Two."), chat_requests.ChatRequests._is_busy
    async with open_web(db, model) as web:
        model.released.set()
        chat = Client(web)
        await chat.say("Hi")
        model.reached.clear()
        model.released.clear()
        first, second = (Client(web, history=list(chat.said)) for _ in range(2))
        turn = asyncio.create_task(first.say("1"))
        await model.reached.wait()

        async def check_after_the_turn(requests: chat_requests.ChatRequests, route: str) -> bool:
            model.released.set()
            await turn
            return await is_busy(requests, route)

        monkeypatch.setattr(chat_requests.ChatRequests, "_is_busy", check_after_the_turn)
        await second.say("2")
    assert first.ids[0] != second.ids[0]
    assert await read_all(db) == {first.ids[0]: first.said, second.ids[0]: second.said}


async def test_chats_with_equal_beginnings_are_kept_apart(db: AsyncSessionDB) -> None:
    async with open_web(db, repeat("Hello!")) as web:
        one, two = Client(web), Client(web)
        await one.say("Hi")
        await two.say("Hi")
        assert one.ids != two.ids
        # It is unknown which of them is continued, so neither is: each goes on in a copy.
        for chat in (one, two):
            await chat.say(f"I am {chat.ids[0]}")
            await chat.say("And more")
    found = await read_all(db)
    assert sorted(map(len, found.values())) == [2, 2, 6, 6]
    assert {one.ids[1], one.ids[2]} == {one.ids[1]} != {two.ids[1]} == {two.ids[2]}
    assert (found[one.ids[1]], found[two.ids[1]]) == (one.said, two.said)


async def test_latest_of_equal_unnamed_chats_continues(monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB) -> None:
    monkeypatch.setattr(request_history, "MIN_APART", 0.0)
    async with open_web(db, repeat("Hello!")) as web:
        left, chat = Client(web), Client(web)
        await left.say("Hi")
        await chat.say("Hi")
        for text in ("It has words that the chat has not", "Hi"):
            await web.ask(text, headers=ANN | {"x-conversation-id": "other"})
        await chat.say("And?")
        assert chat.ids[0] == chat.ids[1] != left.ids[0]


CUT = models.Reply(parts=(content_parts.Text("It was"),), finish="length")
EMPTY = models.Reply(usage=types.Usage(input=3, output=1))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("replies", [[CUT], [EMPTY], [LOOKS, EMPTY], [LOOKS, "There."]])
async def test_answer_unlike_the_log_continues(replies: list[models.Reply], stream: bool, db: AsyncSessionDB) -> None:
    async with open_web(db, ScriptedModel([*replies, "Fine."]), tools=[says("look")]) as web:
        chat = Client(web)
        await chat.say("Tell me", stream=stream)
        chat.said[-1] = chat.said[-1].replace("\n", "\r\n") + "\n"
        await chat.say("Go on", stream=stream)
    assert chat.ids[0] == chat.ids[1]


@pytest.mark.parametrize(
    "picture",
    [
        inline_images.MISSING,
        inline_images.LARGE.format(kind="image/png", size=300_000),
        "![Image](data:image/png;base64,iVBORw0KGgo=)",
        "![Generated Image](https://chat.example.com/files/1.png)",
    ],
)
def test_histories_are_compared_without_pictures(picture: str) -> None:
    assert request_history.normalize(f"A dot.\n\n{picture}\n") == "A dot."


@pytest.mark.parametrize("text", ["![", "![](data:", "[Image"])
def test_normalization_takes_linear_time(text: str) -> None:
    assert request_history.normalize(many := text * 200_000) == " ".join(many.split())  # hours if quadratic


async def test_failed_turn_is_repeated_in_the_same_conversation(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["Hello!", errors.ModelError("Out of order."), "Two.", "Three."])
    async with open_web(db, model) as web:
        chat = Client(web)
        await chat.say("1")
        assert (await web.ask(*chat.said, "2")).status_code == 502
        await chat.say("2")
        await chat.say("3")
    assert len(set(chat.ids)) == 1
    assert list((await read_all(db)).values()) == [["1", "Hello!", "2", "2", "Two.", "3", "Three."]]


@pytest.mark.parametrize("received", ["It w", "", None], ids=["part", "empty", "nothing"])
async def test_stopped_answer_is_continued_with_the_received_part(received: str | None, db: AsyncSessionDB) -> None:
    async def is_settled() -> bool:
        return not (await db.mail.counts())["arrivals_open"]

    model = gateways.HeldModel("Hello!", "It was long ago.", "Fine.")
    async with open_web(db, model) as web:
        model.released.set()
        chat = Client(web)
        await chat.say("Hi")
        model.reached.clear()
        model.released.clear()
        asking = asyncio.create_task(web.ask(*chat.said, "Tell me", stream=True))
        await model.reached.wait()
        asking.cancel()
        await asyncio.wait([asking])
        await until_async(is_settled)
        model.released.set()
        chat.said += [] if received is None else ["Tell me", received]
        await chat.say("Something else")
    assert chat.ids[0] == chat.ids[1]
    assert len(await read_all(db)) == 1


async def test_system_messages_are_current_instructions_and_not_stored(db: AsyncSessionDB) -> None:
    model = repeat(echo)

    async def ask(*roles: tuple[str, str], name: str = "") -> str:
        said = [{"role": role, "content": content} for role, content in roles]
        answered = await web.post({"messages": said}, ANN | ({"x-conversation-id": name} if name else {}))
        text_of(answered)
        return str(answered.headers["x-conversation-id"])

    async with open_web(db, model) as web:
        before = [("user", "Hi there"), ("assistant", "Re: Hi there")]
        name = await ask(("system", "RULE-A"), ("user", "Hi there"))
        await ask(("system", "RULE-B"), ("developer", "RULE-C"), *before, ("user", "2"))
        await ask(("user", "3"), name=name)
        await ask(("system", ""), ("user", "4"), name=name)
        await ask(("system", "RULE-A"), ("user", "5"), name=name)
        await ask(*before, ("user", "6"), name=name)
    rules = ["".join(rule for rule in "ABC" if f"RULE-{rule}" in each.system) for each in model.requests]
    assert rules == ["A", "BC", "BC", "", "A", ""]
    assert not any("RULE" in str(each.content) for asked in model.requests for each in asked.messages)
    (only,) = await db.list_sessions()
    assert (only.title, len(await db.transcript(only.id))) == ("Hi there", 12)


async def test_conversation_names_of_a_client_belong_to_its_owner(db: AsyncSessionDB) -> None:
    async with open_web(db, repeat(echo)) as web:
        for text, token, name in (("a1", ANN, "x"), ("b1", BOB, "x"), ("a2", ANN, "x"), ("c1", ANN, "")):
            answered = await web.ask(text, headers=token | {"x-conversation-id": name}, user="same")
            assert text_of(answered) == f"Re: {text}"
    said = await read_all(db)
    owners = {(await db.conversation(key)).owner: each for key, each in said.items() if len(each) > 2}
    assert owners == {"http:ann": ["a1", "Re: a1", "a2", "Re: a2"]}
    assert len(said) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TITLE, True),
        (f"  {LIBRECHAT}", True),
        ("Analyze this conversation and provide:\n1. The language\n2. A concise title in the detected language", True),
        ("### Task:\nRespond to the user query using the provided context.\n<context>x</context>", False),
        ("Name this chat: Hi", True),
    ],
)
def test_side_request_is_recognised_by_its_beginning(text: str, expected: bool) -> None:
    asked = chat_completions.ChatRequest("holdfast", (), chat_completions.Turn("user", text))
    assert chat_completions.is_side_request(asked, ["Name this chat:"]) is expected
    before = (chat_completions.Turn("user", "Hi"), chat_completions.Turn("assistant", "Yes"))
    later = chat_completions.ChatRequest("holdfast", before, asked.now)
    assert not chat_completions.is_side_request(later, ["Name this chat:"])


async def test_side_requests_are_answered_and_leave_nothing_behind(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["A title", "Another", errors.ModelError("Out of order."), *["A title"] * 99])
    async with open_web(db, model, checks=[http_gateway.refuse_bob]) as web:
        whole = await web.ask(TITLE, max_completion_tokens=9)
        assert (text_of(whole), whole.json()["usage"]["total_tokens"] > 0) == ("A title", True)
        assert streamed_text(await web.ask(LIBRECHAT, stream=True)) == "Another"
        failed = await web.ask(TITLE)
        assert (failed.status_code, error_of(failed)["code"]) == (502, "turn_failed")
        assert (await web.ask(TITLE, headers=BOB)).status_code == 403
        # They have a limit.
        assert [(await web.ask(TITLE)).status_code for _ in range(58)] == [200] * 57 + [429]
    assert [each.max_output for each in model.requests[:3]] == [9, None, None]
    assert (await db.list_sessions(), await db.mail.inbound(1), await db.routes()) == ([], None, [])
