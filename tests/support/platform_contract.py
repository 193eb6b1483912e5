"""The tests that every chat platform passes; a test module inherits them and has a fixture `chat`."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast import AsyncSessionDB, content_parts, errors
from holdfast.agent import memory
from holdfast.app import process_records
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from holdfast.tools.shell import background
from tests.support import compaction, gateways
from tests.support.chat_adapters import ChatAdapter
from tests.support.polling import until_async


def echo(request: models.Request) -> str:
    """Repeat the last message; a review finds nothing to remember."""
    is_review = request.system == memory.INSTRUCTIONS
    return "nothing" if is_review else f"re {content_parts.text(request.messages[-1].content).strip()}"


def echo_model(**given: Any) -> ScriptedModel:
    return ScriptedModel(itertools.repeat(echo), **given)


@asynccontextmanager
async def answer(db: AsyncSessionDB, model: models.Model, chat: ChatAdapter, **given: Any) -> AsyncIterator[Any]:
    """Run a gateway that is connected to the service and a member of the chats."""
    async with gateways.run_platform(db, model, chat.load(), **given) as opened:
        await chat.join()
        yield opened


class PlatformContract:
    """Every message is stored, and answered once."""

    async def test_message_that_could_not_be_stored_is_received_again(
        self, chat: ChatAdapter, db: AsyncSessionDB
    ) -> None:
        failures = [errors.StoreBusy()]

        async def store_fails() -> None:
            assert chat.is_pending()
            if failures:
                raise failures.pop()

        async with answer(db, echo_model(), chat):
            gateways.intercept(db.mail, "add_inbound", store_fails)
            keys = [await chat.say(text) for text in ("One", "Two")]
            await until_async(lambda: not failures)
            if not chat.keeps_order:  # The next message is answered before the first is delivered again.
                await gateways.wait_settled(db, keys[1], platform=chat.name)
            await chat.disconnect()
            await gateways.wait_settled(db, *keys, platform=chat.name)
            if chat.acknowledges:
                await until_async(lambda: not chat.is_pending())
        texts = await chat.texts()
        assert (texts if chat.keeps_order else sorted(texts)) == ["re One", "re Two"]

    async def test_burst_during_a_compaction_is_answered_once_in_one_conversation(
        self, chat: ChatAdapter, db: AsyncSessionDB, tmp_path: Path
    ) -> None:
        """While the summary is written: a turn ends and is reviewed, a background process ends, and messages arrive."""
        summarize, started, proceed = compaction.blocked_summary()
        model = echo_model(window=compaction.WINDOW)
        options = {"summarizer": compaction.FakeSummarizer(summarize), "remembers": True, "reviews": True}
        async with answer(db, model, chat, **options) as opened:
            await compaction.fill(db, owner=chat.owner)
            await db.bind_route(chat.route, "talk", version=0)
            records = process_records.ProcessRecords(db, lambda _: opened.router.wake())
            processes = background.BackgroundProcesses(records, str(tmp_path), lambda: os.environ)
            os.mkfifo(pipe := tmp_path / "pipe")
            build = await processes.start("talk", f"timeout 60 cat {pipe}", str(tmp_path))
            keys = [await chat.say("One")]
            await started.wait()
            keys += [await chat.say(text) for text in ("Two", "Three", "Four")]
            (first,) = await gateways.wait_settled(db, keys[0], platform=chat.name)
            await until_async(lambda: any(each.system == memory.INSTRUCTIONS for each in model.requests))
            await asyncio.to_thread(pipe.write_text, "The build ended.")
            assert await processes.wait(build, 60) == ("exited", 0, "exited with code 0")
            await chat.repeat()
            await chat.disconnect()
            keys.append(await chat.say("Five", by_ben=True))
            assert (first.outcome, await db.continuations("talk")) == ("answered", [])
            proceed.set()
            found = await gateways.wait_settled(db, *keys, platform=chat.name)
            await until_async(lambda: chat.shows("The build ended"))
        texts = await chat.texts()
        replies = [each for each in texts if "The build ended" not in each]
        assert (replies, len(texts)) == (["re One", "re Two", "re Three", "re Four"], 5)
        assert await chat.texts(to_ben=True) == ["re Five"]
        assert [each.outcome for each in found] == ["answered"] * len(keys)
        assert {each.conversation_id for each in found[:4]} == {"talk"}
        assert len(await db.continuations("talk")) == 1


class DraftContract:
    """Platforms whose messages can be edited show a reply while it is written."""

    async def test_reply_is_streamed_by_edits_of_one_message(self, chat: ChatAdapter, db: AsyncSessionDB) -> None:
        model = gateways.HeldModel("Hello there!")
        async with answer(db, model, chat):
            await chat.say("Hi")
            await until_async(lambda: chat.shows("Hello"))
            (draft,) = chat.ids()
            model.released.set()
        assert (await chat.texts(), chat.ids()) == (["Hello there!"], [draft])

    async def test_long_reply_is_split_at_the_limit_of_the_platform(
        self, chat: ChatAdapter, db: AsyncSessionDB
    ) -> None:
        paragraphs = chat.load().limit // 500
        text = "\n\n".join(f'{number}: "Ü" & <é> {"🙂" * 900} @Ben.' for number in range(paragraphs))
        async with answer(db, ScriptedModel([text]), chat):
            await gateways.wait_settled(db, await chat.say("Hi"), platform=chat.name)
        texts = await chat.texts()
        shown, expected = ("".join(each.replace("\u2060", "").split()) for each in ("".join(texts), text))
        assert shown == expected
        assert len(texts) > 1
