"""Images of messages in model requests: their bytes, the limits, and images that a provider refuses."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, events, types
from holdfast.agent import request_images
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from holdfast.store.blobs import files as blob_files
from holdfast.tools.files import images
from tests.support import agents
from tests.support.image_files import png
from tests.support.provider_calls import ANTHROPIC, OPENAI, Api
from tests.support.replay_server import Server

PICTURE = png()
DATA = base64.b64encode(PICTURE).decode()
BODIES: dict[str, tuple[Api, dict[str, Any]]] = {
    "anthropic": (ANTHROPIC, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}),
    "openai": (OPENAI, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}),
}
REFUSED = errors.RequestRefused("This model accepts no images.", status=400)


async def part(db: AsyncSessionDB, data: bytes = PICTURE) -> dict[str, Any]:
    return {"type": "image", "blob": (await db.blobs.put(data, "image/png")).digest}


def sent(request: models.Request) -> list[str]:
    """Return the images of a request, and the texts in the place of others."""
    parts = [each for message in request.messages if isinstance(message.content, list) for each in message.content]
    kinds = [each for each in parts if each["type"] == "image" or "left out" in each.get("text", "")]
    return [each.get("data") or each.get("text", "") for each in kinds]


def left_out(why: str) -> str:
    return f"[An image is left out: {why}.]"


@pytest.mark.parametrize(("api", "wanted"), BODIES.values(), ids=BODIES)
async def test_provider_receives_the_bytes_of_an_image(
    api: Api, wanted: dict[str, Any], db: AsyncSessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, real = list[str](), blob_files.BlobFiles.open
    monkeypatch.setattr(blob_files.BlobFiles, "open", lambda self, digest: opened.append(digest) or real(self, digest))
    async with Server(api.whole) as server:
        model = api.create(server, window=100_000)
        agent = agents.agent(db, model)
        for text, content in (("What is it?", [await part(db)]), ("And now?", None)):
            assert (await agent.run_conversation(text, content=content)).completed
        await model.close()
        for asked in server.asked:
            content = next(each["content"] for each in asked.json["messages"] if each["role"] == "user")
            (image,) = [part for part in content if part["type"] != "text"]
            assert image == {**image, **wanted}
    assert len(opened) <= 2, "the image is measured and loaded once for both requests"


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"GIF8", images.NOT_SENDABLE), (png(8_001), images.NOT_SENDABLE), (None, request_images.UNAVAILABLE)],
)
async def test_image_that_cannot_be_sent_is_replaced_by_the_reason(data: bytes | None, why: str) -> None:
    model, seen = ScriptedModel(["Sorry.", "Yes."]), list[events.AnyEvent]()
    async with AsyncSessionDB(SessionDB(":memory:")) as db:
        image = {"type": "image", "blob": "0" * 64} if data is None else await part(db, data)
        agent = agents.agent(db, model)
        for text, content in (("Look", [{"type": "text", "text": "Look"}, image, await part(db)]), ("Well?", None)):
            assert (await agent.run_conversation(text, content=content, emit=seen.append)).completed
    assert [sent(request) for request in model.requests] == [[left_out(why), DATA]] * 2
    notices = [each for each in seen if isinstance(each, events.Notice)]
    assert notices == [events.Notice(f"1 image was not sent to the model: {why}.", "warning", to_chats=True)]


@pytest.mark.parametrize(("total", "kept"), [(None, 15), (len(DATA) * 3, 3)])
async def test_newest_images_are_sent_within_the_limits(
    total: int | None, kept: int, db: AsyncSessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    if total is not None:
        monkeypatch.setattr(request_images, "MAX_TOTAL", total)
    many, model, seen = 25, ScriptedModel(["Yes."]), list[events.AnyEvent]()
    image = await part(db)
    for number in range(many - 1):
        message = types.NewMessage(role="user", content=[{"type": "text", "text": str(number)}, image])
        await db.append_messages("talk", [message], create=types.NewConversation(source="test"))
    agent = agents.agent(db, model, session_id="talk")
    await agent.run_conversation("Look", content=[image], emit=seen.append)
    assert sent(model.requests[0]) == [left_out(request_images.OLDER)] * (many - kept) + [DATA] * kept
    (notice,) = [each for each in seen if isinstance(each, events.Notice)]
    assert f"{many - kept} images were not sent to the model" in notice.text
    assert not notice.to_chats, "older images do not disturb a chat"


async def test_refused_images_do_not_block_the_conversation(db: AsyncSessionDB) -> None:
    by_server = errors.ModelServerError("Image input is not supported.", status=500)
    model, seen = ScriptedModel([REFUSED, "A dot?", "Yes.", by_server, "Hm."]), list[events.AnyEvent]()
    agent = agents.agent(db, model)
    for content in ([await part(db)], None, [await part(db)]):
        assert (await agent.run_conversation("Look", content=content, emit=seen.append)).completed
    gone = left_out(request_images.REFUSED)
    assert [sent(each) for each in model.requests] == [[DATA], [gone], [gone], [gone, DATA], [gone, gone]]
    assert len([each for each in seen if isinstance(each, events.Notice) and each.to_chats]) == 2


@pytest.mark.parametrize(("status", "requests"), [(400, 2), (402, 1)])
async def test_request_refused_for_another_reason_keeps_images(status: int, requests: int, db: AsyncSessionDB) -> None:
    error = errors.RequestRefused("No.", status=status)
    model = ScriptedModel([*[error] * requests, "A dot."])
    agent = agents.agent(db, model)
    assert not (await agent.run_conversation("Look", content=[await part(db)])).completed
    assert (await agent.run_conversation("Again")).completed
    assert (len(model.requests), sent(model.requests[-1])) == (requests + 1, [DATA])


async def test_refusal_after_the_answer_has_begun_asks_no_second_time(db: AsyncSessionDB) -> None:
    model = ScriptedModel([[models.ContentDelta("A"), REFUSED], "A dot."])
    assert not (await agents.agent(db, model).run_conversation("Look", content=[await part(db)])).completed
    assert len(model.requests) == 1


def test_cache_is_bounded() -> None:
    cache = request_images.MessageCache(10)
    messages = [types.Message(seq, str(seq), "", "user", 0.0, "x" * 4) for seq in range(3)]
    for message in messages:
        cache.put(message, message)
        cache.get(messages[0])
    assert [cache.get(message) for message in messages] == [messages[0], None, messages[2]]
