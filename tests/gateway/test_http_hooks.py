"""What is posted to a hook and signed is one message; its reply goes where the settings say, and nowhere else."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from holdfast import AsyncSessionDB, errors
from holdfast.gateway import access
from holdfast.gateway import platform as gateway_platform
from holdfast.gateway import settings as said
from holdfast.gateway.platforms.http import callbacks, http_platform, requests, server, signatures, webhooks
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from holdfast.tools import base as tools_port
from tests.support import gateways, http_gateway, memory_platform

SECRET = "a-secret-of-some-length"
BODY = b'{"text": "It broke."}'


def hook(**given: Any) -> webhooks.HookConfig:
    return webhooks.HookConfig(SECRET, said.Hook("SECRET", **given))


class Open:
    def __init__(
        self,
        client: httpx2.AsyncClient,
        chat: memory_platform.MemoryPlatform,
        platform: http_platform.HttpPlatform,
    ) -> None:
        self.client, self.chat, self.platform = client, chat, platform

    async def post(self, body: bytes = BODY, name: str = "build", **headers: str) -> httpx2.Response:
        given = {each.replace("_", "-"): value for each, value in headers.items()}
        delivery = given.get(signatures.ID, hashlib.sha256(body).hexdigest())
        sent = {"content-type": "application/json", **signatures.sign(SECRET, delivery, body, time.time()), **given}
        return await self.client.post(f"/hooks/{name}", content=body, headers=sent)

    async def fetch(self, number: int, name: str = "build") -> httpx2.Response:
        signed = signatures.sign(SECRET, "fetch", str(number).encode(), time.time())
        return await self.client.get(f"/hooks/{name}/{number}", headers=signed)


@asynccontextmanager
async def open_hooks(
    db: AsyncSessionDB,
    model: models.Model,
    guards: Sequence[gateway_platform.AdmissionCheck] = (),
    tools: Sequence[tools_port.Tool] = (),
    **hooks: webhooks.HookConfig,
) -> AsyncIterator[Open]:
    taking = webhooks.Webhooks(db, hooks)
    platform = http_platform.HttpPlatform(db, tokens=http_gateway.TOKENS, hooks=taking)
    platforms = [memory_platform.MemoryPlatform(), taking, platform]
    async with (
        gateways.open_gateway(db, model, platforms=platforms, checks=guards, tools=tools) as (_, chat),
        http_gateway.client_of(platform) as client,
    ):
        while taking.handler is None:
            await asyncio.sleep(0)
        yield Open(client, chat, platform)


async def test_a_delivery_is_one_message_however_often_it_comes_and_its_reply_is_kept(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["I look at it.", "And again."])
    async with open_hooks(db, model, build=hook(prompt="Look at this:")) as open_:
        several = [await open_.post(webhook_id="7") for _ in range(3)]
        assert [(each.status_code, each.json()) for each in several] == [(202, {"id": 1})] * 3
        assert several[0].headers["location"] == "/hooks/build/1"
        await gateways.settled(db, "build:7", platform="hooks")
        kept = await open_.fetch(1)
        assert kept.json() == {"id": 1, "outcome": "answered", "text": "I look at it."}
        assert (await open_.fetch(2)).status_code == 404
    assert len(model.requests) == 1
    arrival = await db.mail.inbound(1)
    assert arrival is not None
    assert arrival.text == "Look at this:\n\nIt broke."


async def test_a_reply_goes_to_the_chat_that_the_settings_name(db: AsyncSessionDB) -> None:
    async with open_hooks(db, ScriptedModel(["Hm."]), build=hook(to="loopback:42")) as open_:
        assert (await open_.post()).status_code == 202
        (sent,) = await open_.chat.replies(1)
        assert (sent.text, sent.address, sent.chat) == ("Hm.", {"chat": "42"}, "dm:42")
        assert (await open_.fetch(1)).status_code == 404


async def test_what_somebody_overheard_is_no_other_message_whatever_id_they_give_it(db: AsyncSessionDB) -> None:
    now, taken = time.time(), list[int]()
    six, seven = (signatures.sign(SECRET, each, BODY, now) for each in ("6", "7"))
    async with open_hooks(db, ScriptedModel(["One.", "Two."]), build=hook()) as open_:
        for signed, status in (
            (six, 202),
            (six, 202),
            ({**six, signatures.ID: "8"}, 401),
            (seven, 202),
            (seven, 202),
            ({**seven, signatures.ID: "6"}, 401),
            ({**seven, signatures.TIMESTAMP: str(int(now) + 1)}, 401),
            # Signed again, as a sender that retries later has to: the same delivery.
            (signatures.sign(SECRET, "7", BODY, now + 1), 202),
            ({**seven, signatures.ID: "7.x"}, 400),
            ({**seven, signatures.ID: ""}, 401),
        ):
            answered = await open_.post(**{name.replace("-", "_"): value for name, value in signed.items()})
            assert answered.status_code == status, (signed, answered.text)
            taken.extend([answered.json()["id"]] if status == 202 else [])
    assert len(set(taken)) == 2


def test_signature_is_that_of_the_specification() -> None:
    # The example of the reference libraries of Standard Webhooks.
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    signed = signatures.sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", body, 1614265330)
    assert signed[signatures.SIGNATURE] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    with pytest.raises(errors.SettingInvalid, match="base64"):
        webhooks.HookConfig("whsec_not base64 at all", said.Hook("SECRET")).check("build")


async def test_what_github_signs_once_is_one_message_whatever_id_it_comes_under(db: AsyncSessionDB) -> None:
    made = "sha256=" + hmac.new(SECRET.encode(), BODY, "sha256").hexdigest()
    async with open_hooks(db, ScriptedModel(["Hm."]), git=hook(scheme="github")) as open_:
        for delivery in ("d", "e", "f"):
            given = {"x_hub_signature_256": made, "x_github_delivery": delivery, "x_github_event": delivery}
            assert (await open_.post(BODY, "git", **given)).json() == {"id": 1}


@pytest.mark.parametrize(
    ("verdict", "status", "headers"),
    [
        (gateway_platform.AdmissionResult(False), 403, {}),
        (gateway_platform.AdmissionResult(False, reason="limit", retry_after=59.2), 429, {"retry-after": "60"}),
        (gateway_platform.AdmissionResult(False, reason="size"), 413, {}),
    ],
    ids=["nobody let it in", "too much", "too large"],
)
async def test_a_hook_that_is_refused_at_the_door_is_told_why_and_nobody_else_is(
    verdict: gateway_platform.AdmissionResult, status: int, headers: dict[str, str], db: AsyncSessionDB
) -> None:
    async def no(_came: gateway_platform.Incoming, _route: str) -> gateway_platform.AdmissionResult:
        return msgspec.structs.replace(verdict, message="No.")

    async with open_hooks(db, ScriptedModel([]), [no], build=hook(to="loopback:42")) as open_:
        refused = await open_.post()
        assert (refused.status_code, http_gateway.error_of(refused)["message"]) == (status, "No.")
        assert headers.items() <= dict(refused.headers).items()
    assert set((await db.mail.counts()).values()) == {0}


async def test_a_hook_answers_only_in_a_chat_that_was_let_in(db: AsyncSessionDB) -> None:
    rules = access.Rules(authenticated=frozenset({"hooks"}))
    guards = [access.Access(db, rules)]
    async with open_hooks(db, ScriptedModel(["Hm."]), guards, build=hook(to="loopback:42")) as open_:
        refused = await open_.post(webhook_id="1")
        assert refused.status_code == 403
        assert "holdfast gateway allow loopback 42" in http_gateway.error_of(refused)["message"]
        await db.contacts.allow("loopback", "42")
        assert (await open_.post(webhook_id="1")).status_code == 202
        await open_.chat.replies(1)


async def test_what_github_sends_is_known_by_its_signature(db: AsyncSessionDB) -> None:
    body = b'{"action": "opened"}'
    made = "sha256=" + hmac.new(SECRET.encode(), body, "sha256").hexdigest()
    async with open_hooks(db, ScriptedModel(["Hm."]), git=hook(scheme="github")) as open_:
        given = {"x_github_delivery": "d", "x_github_event": "issues"}
        for wrong in ("", made[:-1], made.replace("sha256", "sha1"), made.upper()):
            assert (await open_.post(body, "git", x_hub_signature_256=wrong, **given)).status_code == 401
        for _ in range(2):
            assert (await open_.post(body, "git", x_hub_signature_256=made, **given)).json() == {"id": 1}
        known_by = f"git:={hashlib.sha256(body).hexdigest()}"
        (found,) = await gateways.settled(db, known_by, platform="hooks")
        assert found.text == 'Posted to the webhook git (issues):\n\n{"action": "opened"}'


def test_what_is_not_signed_as_it_has_to_be_is_refused() -> None:
    now = 1_000_000.0
    good = signatures.sign(SECRET, "7", BODY, now)
    mac = good[signatures.SIGNATURE]
    assert signatures.verify(SECRET, good, BODY, now + 299) == "7"
    signatures.verify(SECRET, {**good, signatures.SIGNATURE: f"v1,AAAA v2,BBBB {mac}"}, BODY, now)
    other = signatures.sign("another-secret-entirely", "7", BODY, now)
    for given, body, at in (
        ({signatures.ID: "7"}, BODY, now),
        (other, BODY, now),
        (good, BODY + b" ", now),
        (good, BODY, now + 301),
        (good, BODY, now - 301),
        ({**good, signatures.TIMESTAMP: "1000001"}, BODY, now),
        ({**good, signatures.TIMESTAMP: ""}, BODY, now),
        ({**good, signatures.TIMESTAMP: "+1000000"}, BODY, now),
        ({**good, signatures.TIMESTAMP: "١٠٠٠٠٠٠"}, BODY, now),
        ({**good, signatures.TIMESTAMP: "9" * 5000}, BODY, now),
        ({**good, signatures.SIGNATURE: ""}, BODY, now),
        ({**good, signatures.SIGNATURE: "v1,"}, BODY, now),
        ({**good, signatures.SIGNATURE: mac.replace("v1", "v0")}, BODY, now),
        ({**good, signatures.SIGNATURE: "v1,AA " * 20 + mac}, BODY, now),
    ):
        with pytest.raises(requests.HttpError) as refused:
            signatures.verify(SECRET, given, body, at)
        assert refused.value.status == 401


async def test_hooks_that_are_not_there_or_bodies_that_are_none_are_refused(db: AsyncSessionDB) -> None:
    async with open_hooks(db, ScriptedModel([]), build=hook()) as open_:
        for refused, status in (
            (await open_.post(name="other"), 404),
            (await open_.post(b"not json"), 400),
            (await open_.post(b"[]"), 400),
            (await open_.post(content_type="text/plain"), 415),
            (await open_.post(webhook_id="x" * 201), 400),
            (await open_.post(webhook_signature="v1,0"), 401),
            (await open_.client.get("/hooks/build/1"), 401),
            (await open_.client.get("/hooks/build"), 405),
        ):
            assert refused.status_code == status, refused.text
            http_gateway.error_of(refused)
    assert await db.mail.inbound(1) is None


def test_what_is_posted_is_no_command() -> None:
    assert webhooks.message_text("a", "", "", {"text": "/new"}, b"") == "//new"
    assert webhooks.message_text("a", "", "x\ny", {}, b"{}") == "Posted to the webhook a:\n\n{}"


# --- callbacks -------------------------------------------------------------------------------------------


@asynccontextmanager
async def replied(db: AsyncSessionDB) -> AsyncIterator[tuple[Open, dict[str, str], bytes]]:
    """Hooks of which one was called, and what it posted to the address of its settings."""
    got: list[tuple[dict[str, str], bytes]] = []
    came = asyncio.Event()

    async def take(request: Request) -> Response:
        got.append((dict(request.headers), await request.body()))
        came.set()
        return Response(status_code=204)

    listening = server.bind("127.0.0.1", 0, has_tokens=False)
    at = f"http://127.0.0.1:{listening.getsockname()[1]}/take"
    async with (
        server.serve(Router([Route("/take", take, methods=["POST"])]), listening),
        open_hooks(db, ScriptedModel(["Done."]), build=hook(to=at)) as open_,
    ):
        await open_.post()
        await came.wait()
        ((headers, body),) = got
        yield open_, headers, body


async def test_a_reply_is_posted_to_the_address_of_the_settings_and_signed(db: AsyncSessionDB) -> None:
    async with replied(db) as (_, headers, body):
        pass
    signatures.verify(SECRET, headers, body, time.time())
    assert msgspec.json.decode(body) == {"id": 1, "hook": "build", "kind": "reply", "part": 0, "text": "Done."}


@pytest.mark.parametrize(
    ("status", "raised"),
    [(301, errors.SendRefused), (404, errors.SendRefused), (429, errors.SendFailed), (503, errors.SendFailed)],
)
def test_what_a_callback_answers_decides_whether_it_is_told_again(status: int, raised: type[Exception]) -> None:
    async def told() -> list[str]:
        paths: list[str] = []

        async def take(request: Request) -> Response:
            paths.append(request.url.path)
            return Response(status_code=status, headers={"location": "/elsewhere", "retry-after": "7"})

        listening = server.bind("127.0.0.1", 0, has_tokens=False)
        routes = [Route("/{path}", take, methods=["GET", "POST"])]
        async with server.serve(Router(routes), listening):
            at = f"http://127.0.0.1:{listening.getsockname()[1]}/take"
            with pytest.raises(raised) as refused:
                await callbacks.CallbackPoster().post(at, {}, b"{}", allow_private=False)
            assert getattr(refused.value, "retry_after", 7.0) == 7.0
        return paths

    assert asyncio.run(told()) == ["/take"]


PRIVATE = [
    "127.0.0.1",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fe80::1",
    "fd00::1",
    "::ffff:10.0.0.1",
    "64:ff9b::a00:1",
    "2002:a00:1::",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_a_name_that_leads_into_a_private_network_is_not_spoken_to(address: str) -> None:
    assert not callbacks.may_reach(address, allow_private=False)
    posting = callbacks.CallbackPoster(lambda _host, _port: ["93.184.215.14", address])
    with pytest.raises(errors.SendRefused, match="private address"):
        asyncio.run(posting.post("https://callback.example/", {}, b"{}", allow_private=False))


def test_public_addresses_are_reached_and_private_ones_where_that_is_wanted() -> None:
    assert callbacks.may_reach("93.184.215.14", allow_private=False)
    assert callbacks.may_reach("2606:2800:220:1::1", allow_private=False)
    assert callbacks.may_reach("10.0.0.1", allow_private=True)
    assert not callbacks.may_reach("169.254.169.254", allow_private=True)


@pytest.mark.parametrize(
    "to",
    [
        "http://callback.example/",
        "ftp://callback.example/",
        "https://",
        "https://user:pass@callback.example/",
        "https://10.0.0.1/",
        "https://[fe80::1]/",
        "https://callback.example:x/",
        "file:///etc/passwd",
        "loopback",
        "loopback:",
    ],
)
def test_settings_that_lead_nowhere_are_told_at_the_start(to: str) -> None:
    with pytest.raises(errors.SettingInvalid, match=r"gateway\.hooks\.build"):
        hook(to=to).check("build")


def test_a_secret_that_can_be_guessed_is_none() -> None:
    with pytest.raises(errors.SettingInvalid, match="SECRET") as refused:
        webhooks.HookConfig("hunter2", said.Hook("SECRET")).check("build")
    assert "hunter2" not in str(refused.value)


async def test_a_reply_that_somebody_overheard_is_no_delivery(db: AsyncSessionDB) -> None:
    async with replied(db) as (open_, headers, body):
        given = {name: headers[name] for name in (signatures.ID, signatures.TIMESTAMP, signatures.SIGNATURE)}
        assert given[signatures.ID].startswith("reply-build-")
        sent = {"content-type": "application/json", **given}
        for known, status in (
            (sent, 401),
            ({**sent, signatures.ID: "17"}, 401),
            ({**sent, signatures.ID: ""}, 401),
        ):
            refused = await open_.client.post("/hooks/build", content=body, headers=known)
            assert refused.status_code == status


async def test_full_reader_cancels_the_oldest_read_of_the_busiest_client(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(webhooks, "MAX_UNVERIFIED", 3)

    platform = webhooks.Webhooks(db, {"build": hook()})
    may = asyncio.Event()

    async def read(client: str) -> int:
        try:
            async with platform._limit_unverified(client):
                await may.wait()
        except requests.HttpError as refused:
            return refused.status
        return 0

    reading = list[asyncio.Task[int]]()
    for client in ("ann", "eve", "eve", "bob", "eve", "eve"):
        reading.append(asyncio.create_task(read(client)))
        await asyncio.sleep(0)
        assert len(platform._reading) <= 3
    may.set()
    assert await asyncio.gather(*reading) == [0, 408, 408, 0, 408, 0]
    assert not platform._reading


@pytest.mark.parametrize("slow", [3, 1], ids=["all that may be read", "one, until its timeout"])
async def test_slow_client_cannot_shut_out_another(
    monkeypatch: pytest.MonkeyPatch, slow: int, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(webhooks, "MAX_UNVERIFIED", 3)
    monkeypatch.setattr(webhooks, "READ_SECONDS", 0.05 if slow == 1 else 600.0)

    waits, never = asyncio.Semaphore(0), asyncio.Event()

    async def dawdling() -> AsyncIterator[bytes]:
        yield b"{"
        waits.release()
        await never.wait()

    async with (
        open_hooks(db, ScriptedModel(["Hm."]), build=hook()) as open_,
        http_gateway.client_of(open_.platform, peer="203.0.113.9") as other,
    ):
        posts = [asyncio.create_task(other.post("/hooks/build", content=dawdling())) for _ in range(slow)]
        for _ in posts:
            await waits.acquire()
        monkeypatch.setattr(webhooks, "READ_SECONDS", 600.0)  # Only the slow client has little time.
        assert (await open_.post()).status_code == 202
        assert (await posts[0]).status_code == 408
        for post in posts[1:]:
            post.cancel()
        await asyncio.wait(posts)
