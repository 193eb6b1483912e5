"""A client that sends its whole history continues one conversation; what is not its end is never added to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, content_parts, errors, types
from holdfast.gateway.platforms.http import chat_completions, inline_images, request_history
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from tests.gateway.test_borders import refuses
from tests.gateway.test_http_chat import LOOKS, Held, echo, words
from tests.support import backends, conversations, gateways, http_gateway, polling
from tests.support.agents import says

TITLE = "### Task:\nGenerate a concise, 3-5 word title.\n### Chat History:\n<chat_history>\nUSER: Hi\n</chat_history>"
FOLLOW_UP = "### Task:\nSuggest 3-5 relevant follow-up questions.\n<chat_history>\nUSER: Hi\n</chat_history>"
LIBRECHAT = "Provide a concise, 5-word-or-less title for the conversation, using title case conventions."


class Chat:
    """A client such as Open WebUI: it keeps the chat itself and sends all of it with every request."""

    def __init__(self, open_: http_gateway.Web, headers: Mapping[str, str] = http_gateway.ANN) -> None:
        self._open, self._headers = open_, headers
        self.said: list[str] = []
        self.ids: list[str] = []

    async def say(self, text: str, **given: Any) -> str:
        answered = await self._open.ask(*self.said, text, headers=self._headers, **given)
        heard = (
            http_gateway.said_in(http_gateway.chunks(answered.text))
            if given.get("stream")
            else http_gateway.text_of(answered)
        )
        self.said += [text, heard]
        self.ids.append(answered.headers["x-conversation-id"])
        return heard


async def logs(db: AsyncSessionDB) -> dict[str, list[str]]:
    """The words of every conversation."""
    found = await db.list_sessions(limit=500)
    return {each.conversation_id: [words(one) for one in await db.transcript(each.id)] for each in found}


@pytest.mark.parametrize("backend", backends.SHARED, ids=lambda backend: backend.name)
async def test_thirty_requests_with_the_whole_history_are_one_conversation(
    backend: backends.Backend, tmp_path: Path
) -> None:
    async with gateways.store(backend.target(tmp_path, "store")) as db:
        model = ScriptedModel(iter(lambda: echo, None))
        async with http_gateway.open_web(db, model) as open_:
            chat, other = Chat(open_), Chat(open_, http_gateway.BOB)
            for number in range(30):
                assert await chat.say(f"{number}", stream=bool(number % 2)) == f"Re: {number}"
                for side in (TITLE, FOLLOW_UP) if number < 3 else ():
                    assert http_gateway.text_of(await open_.ask(side)) == f"Re: {side}"
                if number == 10:
                    await db.run(lambda: conversations.compact(db.db, chat.ids[0], 12))
                    await db.mail.expire(0)
            other.said = list(chat.said)
            await other.say("mine")
        assert (await db.conversation(other.ids[0])).owner == "http:bob"
        assert await db.branches(chat.ids[0]) == []
        assert set(chat.ids) == {chat.ids[0]}
        found = await logs(db)
        assert found == {chat.ids[0]: chat.said, other.ids[0]: other.said}
        assert len(found[chat.ids[0]]) == 60
        assert await db.mail.inbound(33) is None


async def test_a_history_is_continued_after_a_restart_and_by_an_idempotent_client(db: AsyncSessionDB) -> None:
    model, said = ScriptedModel([echo] * 4), list[str]()
    for number in range(4):
        async with http_gateway.open_web(db, model) as open_:
            chat = Chat(open_, http_gateway.ANN | {"idempotency-key": str(number)})
            chat.said = said
            await chat.say(f"{number}")
    assert list((await logs(db)).values()) == [said]


async def test_an_edited_or_regenerated_message_begins_a_branch(db: AsyncSessionDB) -> None:
    answers = ["One.", "Two.", "Three.", "Other two.", "Other three.", "Anew."]
    async with http_gateway.open_web(db, ScriptedModel(answers)) as open_:
        chat, edited = Chat(open_), Chat(open_)
        for text in ("1", "2", "3"):
            await chat.say(text)
        edited.said = chat.said[:2]
        await edited.say("2")
        await edited.say("3")
        begun_again = Chat(open_)
        await begun_again.say("1")
    assert chat.ids[0] != edited.ids[0] == edited.ids[1] != begun_again.ids[0]
    assert await logs(db) == {
        chat.ids[0]: chat.said,
        edited.ids[0]: ["1", "One.", "2", "Other two.", "3", "Other three."],
        begun_again.ids[0]: begun_again.said,
    }
    assert (await db.branches(chat.ids[0])) == [edited.ids[0]]


async def test_a_history_that_is_not_known_begins_a_conversation_with_it(db: AsyncSessionDB) -> None:
    async with http_gateway.open_web(db, ScriptedModel(["Hello!", "Fine.", "Four."])) as open_:
        chat, foreign = Chat(open_), Chat(open_)
        await chat.say("Hi")
        foreign.said = ["Hi", "Something never said"]
        await foreign.say("And?")
        foreign.said[:1] = ["Hi there"]
        await foreign.say("And now?")
    assert sorted(map(len, (await logs(db)).values())) == [2, 4, 6]
    assert {each.title for each in await db.list_sessions()} == {"Hi", "Hi #2", "Hi there"}


async def test_a_history_never_leads_to_a_conversation_that_a_header_named(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(request_history, "MIN_APART", 0.0)

    async with http_gateway.open_web(db, ScriptedModel(iter(lambda: "Yes.", None))) as open_:
        chat, named = Chat(open_), http_gateway.ANN | {"x-conversation-id": "other"}
        await chat.say("Ready?")
        for text in ("It has words that the chat has not", "Ready?"):
            await open_.ask(text, headers=named)
        await chat.say("Go")
    assert chat.ids[0] == chat.ids[1]


async def test_requests_at_once_with_one_history_do_not_share_a_conversation(db: AsyncSessionDB) -> None:
    async with http_gateway.open_web(db, ScriptedModel(iter(lambda: echo, None))) as open_:
        chat = Chat(open_)
        await chat.say("Hi")
        several = [Chat(open_) for _ in range(5)]
        for each in several:
            each.said = list(chat.said)
        await asyncio.gather(*(each.say(f"{number}") for number, each in enumerate(several)))
    assert len({each.ids[0] for each in several}) == 5
    assert chat.ids[0] in {each.ids[0] for each in several}
    assert sorted((await logs(db)).values()) == sorted(each.said for each in several)


async def test_chats_that_begin_with_the_same_words_are_kept_apart(db: AsyncSessionDB) -> None:
    async with http_gateway.open_web(db, ScriptedModel(iter(lambda: "Hello!", None))) as open_:
        one, two = Chat(open_), Chat(open_)
        await one.say("Hi")
        await two.say("Hi")
        assert one.ids != two.ids
        # Which of them is continued is not known, so neither is: each goes on in a copy.
        for chat in (one, two):
            await chat.say(f"I am {chat.ids[0]}")
            await chat.say("And more")
    found = await logs(db)
    assert sorted(map(len, found.values())) == [2, 2, 6, 6]
    assert {one.ids[1], one.ids[2]} == {one.ids[1]} != {two.ids[1]} == {two.ids[2]}
    assert (found[one.ids[1]], found[two.ids[1]]) == (one.said, two.said)


async def test_of_equal_chats_on_different_days_the_latest_is_continued(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(request_history, "MIN_APART", 0.0)

    async with http_gateway.open_web(db, ScriptedModel(iter(lambda: "Hello!", None))) as open_:
        left, chat = Chat(open_), Chat(open_)
        await left.say("Hi")
        await chat.say("Hi")
        await chat.say("And?")
        assert chat.ids[0] == chat.ids[1] != left.ids[0]


async def test_a_stream_with_words_between_calls_is_continued_as_it_was_seen(db: AsyncSessionDB) -> None:
    model = ScriptedModel([LOOKS, "It is there.", "Fine."])
    async with http_gateway.open_web(db, model, tools=[says("look")]) as open_:
        chat = Chat(open_)
        assert await chat.say("Where?", stream=True) == "Let me look.\n\nIt is there."
        chat.said[-1] = "Let me look.\r\n\r\nIt is there.\n"
        await chat.say("Good.")
    assert chat.ids[0] == chat.ids[1]


CUT = models.Reply(parts=(content_parts.Text("It was"),), finish="length")
EMPTY = models.Reply(usage=types.Usage(input=3, output=1))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("replies", [[CUT], [EMPTY], [LOOKS, EMPTY]], ids=["too-long", "empty", "empty-at-last"])
async def test_an_answer_with_words_of_the_gateway_is_continued(
    replies: list[models.Reply], stream: bool, db: AsyncSessionDB
) -> None:
    async with http_gateway.open_web(db, ScriptedModel([*replies, "Fine."]), tools=[says("look")]) as open_:
        chat = Chat(open_)
        await chat.say("Tell me", stream=stream)
        await chat.say("Go on", stream=stream)
    assert chat.ids[0] == chat.ids[1]


SHOWN = (
    inline_images.MISSING,
    inline_images.LARGE.format(kind="image/png", size=300_000),
    "![Image](data:image/png;base64,iVBORw0KGgo=)",
    "![Generated Image](https://chat.example.com/files/1.png)",
)


def test_histories_are_compared_without_pictures() -> None:
    for shown in SHOWN:
        assert request_history.normalize(f"A dot.\n\n{shown}\n") == "A dot.", shown
    for text in ("![", "![](data:", "[Image"):
        assert request_history.normalize(many := text * 200_000) == " ".join(many.split())  # hours if quadratic


async def test_a_turn_that_failed_is_asked_again_in_the_same_conversation(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["Hello!", errors.ModelError("Out of order."), "Two.", "Three."])
    async with http_gateway.open_web(db, model) as open_:
        chat = Chat(open_)
        await chat.say("1")
        assert (await open_.ask(*chat.said, "2")).status_code == 502
        await chat.say("2")
        await chat.say("3")
    assert len(set(chat.ids)) == 1
    assert list((await logs(db)).values()) == [["1", "Hello!", "2", "2", "Two.", "3", "Three."]]


async def all_settled(db: AsyncSessionDB) -> bool:
    return not (await db.mail.counts())["arrivals_open"]


@pytest.mark.parametrize("kept", ["It w", "", None], ids=["part", "empty", "nothing"])
async def test_a_stopped_answer_is_continued_with_what_the_client_has_of_it(
    kept: str | None, db: AsyncSessionDB
) -> None:
    model = Held("Hello!", "It was long ago.", "Fine.")
    async with http_gateway.open_web(db, model) as open_:
        model.released.set()
        chat = Chat(open_)
        await chat.say("Hi")
        model.reached.clear()
        model.released.clear()
        asking = asyncio.create_task(open_.ask(*chat.said, "Tell me", stream=True))
        await model.reached.wait()
        asking.cancel()
        await asyncio.wait([asking])
        await polling.until_async(lambda: all_settled(db))
        model.released.set()
        chat.said += [] if kept is None else ["Tell me", kept]
        await chat.say("Something else")
    assert chat.ids[0] == chat.ids[1]
    assert len(await logs(db)) == 1


async def test_system_messages_are_the_instructions_of_now_and_no_part_of_the_log(db: AsyncSessionDB) -> None:
    model = ScriptedModel(iter(lambda: echo, None))

    async def ask(*said: dict[str, str], **headers: str) -> str:
        body = {"model": "holdfast", "messages": list(said)}
        answered = await open_.client.post(http_gateway.PATH, json=body, headers=http_gateway.ANN | headers)
        http_gateway.text_of(answered)
        return str(answered.headers["x-conversation-id"])

    def system(text: str) -> dict[str, str]:
        return {"role": "system", "content": text}

    def user(text: str) -> dict[str, str]:
        return {"role": "user", "content": text}

    async with http_gateway.open_web(db, model) as open_:
        before = [user("Hi there"), {"role": "assistant", "content": "Re: Hi there"}]
        name = {"x-conversation-id": await ask(system("RULE-A"), user("Hi there"))}
        await ask(system("RULE-B"), {"role": "developer", "content": "RULE-C"}, *before, user("2"))
        await ask(user("3"), **name)
        await ask(system(""), user("4"), **name)
        await ask(user("5"), **name)
        await ask(system("RULE-A"), user("6"), **name)
        await ask(*before, user("7"), **name)
    told = ["".join(rule for rule in "ABC" if f"RULE-{rule}" in each.system) for each in model.requests]
    assert told == ["A", "BC", "BC", "", "", "A", ""]
    assert not any("RULE" in str(each.content) for asked in model.requests for each in asked.messages)
    (only,) = await db.list_sessions()
    assert (only.title, len(await db.transcript(only.id))) == ("Hi there", 14)


async def test_a_client_s_names_are_its_owner_s_own(db: AsyncSessionDB) -> None:
    async with http_gateway.open_web(db, ScriptedModel(iter(lambda: echo, None))) as open_:
        asked = [
            http_gateway.text_of(await open_.ask(text, headers=token | {"x-conversation-id": name}, user="same"))
            for text, token, name in (
                ("a1", http_gateway.ANN, "x"),
                ("b1", http_gateway.BOB, "x"),
                ("a2", http_gateway.ANN, "x"),
            )
        ]
        assert asked == ["Re: a1", "Re: b1", "Re: a2"]
        empty = await open_.ask("c1", headers=http_gateway.ANN | {"x-conversation-id": ""}, user="same")
        assert http_gateway.text_of(empty) == "Re: c1"
    owners = {(await db.conversation(key)).owner: said for key, said in (await logs(db)).items() if len(said) > 2}
    assert owners == {"http:ann": ["a1", "Re: a1", "a2", "Re: a2"]}
    assert len(await logs(db)) == 3


SIDE = [
    (TITLE, True),
    (FOLLOW_UP, True),
    (f"  {LIBRECHAT}", True),
    ("Analyze this conversation and provide:\n1. The language\n2. A concise title in the detected language", True),
    ("### Task:\nRespond to the user query using the provided context.\n<context>x</context>", False),
    ("Suggest 3-5 relevant follow-up questions", False),
    ("### Task: tidy up", False),
    ("Name this chat: Hi", True),
]


def test_side_requests_are_known_by_how_they_begin() -> None:
    for text, expected in SIDE:
        asked = chat_completions.ChatRequest("holdfast", (), chat_completions.Turn("user", text))
        assert chat_completions.is_side_request(asked, ["Name this chat:"]) is expected, text
    later = chat_completions.ChatRequest(
        "holdfast", (chat_completions.Turn("user", "Hi"), chat_completions.Turn("assistant", "Yes")), asked.now
    )
    assert not chat_completions.is_side_request(later, ["Name this chat:"])


async def test_side_requests_are_answered_and_leave_nothing_behind(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["A title", "Another", errors.ModelError("Out of order.")])
    async with http_gateway.open_web(db, model) as open_:
        whole = await open_.ask(TITLE, max_completion_tokens=9)
        assert (http_gateway.text_of(whole), whole.json()["usage"]["total_tokens"] > 0) == ("A title", True)
        assert http_gateway.said_in(http_gateway.chunks((await open_.ask(LIBRECHAT, stream=True)).text)) == "Another"
        failed = await open_.ask(TITLE)
        assert (failed.status_code, http_gateway.error_of(failed)["code"]) == (502, "turn_failed")
    assert [each.max_output for each in model.requests] == [9, None, None]
    assert (await db.list_sessions(), await db.mail.inbound(1), await db.routes()) == ([], None, [])


async def test_who_may_not_speak_gets_no_side_request_answered(db: AsyncSessionDB) -> None:
    async with http_gateway.open_web(db, ScriptedModel(["A title"] * 99), checks=[refuses]) as open_:
        assert (await open_.ask(TITLE, headers=http_gateway.BOB)).status_code == 403


async def test_side_requests_have_a_limit(db: AsyncSessionDB) -> None:
    async with http_gateway.open_web(db, ScriptedModel(["A title"] * 99)) as open_:
        found = [(await open_.ask(TITLE)).status_code for _ in range(61)]
        assert found == [200] * 60 + [429]
        assert (await open_.ask(TITLE, headers=http_gateway.BOB)).status_code == 200


async def test_a_reply_is_as_long_as_the_client_asks_for(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["1", "2", "3", models.Reply(finish="length")])
    async with http_gateway.open_web(db, model) as open_:
        await open_.ask("Hi", max_completion_tokens=5, max_tokens=7)
        await open_.ask("Hi", max_tokens=7)
        await open_.ask("Hi")
        for wrong in (0, -1, True, 1.5, "5"):
            refused = await open_.ask("Hi", max_completion_tokens=wrong)
            assert (refused.status_code, http_gateway.error_of(refused)["param"]) == (400, "max_completion_tokens")
    assert [each.max_output for each in model.requests] == [5, 7, None]
