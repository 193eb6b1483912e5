"""A signed delivery to a webhook is one message; its reply goes where the settings say."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from holdfast import AsyncSessionDB, errors
from holdfast.agent import approvals
from holdfast.gateway import access
from holdfast.gateway import platform as gateway_platform
from holdfast.gateway.platforms.http import callbacks, requests, server, signatures, webhooks
from holdfast.model import ScriptedModel
from tests.support import gateways
from tests.support.approvals import Shell, shell_reply
from tests.support.http_gateway import BODY, SECRET, client_of, error_of, hook, open_hooks


async def test_repeated_delivery_is_one_message_and_its_reply_is_kept(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["I look at it.", "And again."])
    async with open_hooks(db, model, build=hook(prompt="Look at this:"), other=hook()) as opened:
        several = [await opened.post(id="7") for _ in range(3)]
        assert [(each.status_code, each.json()) for each in several] == [(202, {"id": 1})] * 3
        assert several[0].headers["location"] == "/hooks/build/1"
        (found,) = await gateways.wait_settled(db, "build:7", platform="hooks")
        assert (await opened.fetch(1)).json() == {"id": 1, "outcome": "answered", "text": "I look at it."}
        assert (len(model.requests), found.text) == (1, "Look at this:\n\nIt broke.")
        other = (await opened.post(name="other")).json()["id"]
        assert [(await opened.fetch(number)).status_code for number in (other, other + 1)] == [404, 404]


async def test_reply_goes_to_the_chat_of_the_settings_if_it_has_access(db: AsyncSessionDB) -> None:
    checks = [access.Access(db, access.Rules(authenticated=frozenset({"hooks"})))]
    async with open_hooks(db, ScriptedModel(["Hm."]), checks, build=hook(to="loopback:4:2")) as opened:
        refused = await opened.post()
        assert refused.status_code == 403
        assert "holdfast gateway allow loopback 4:2" in error_of(refused)["message"]
        await db.contacts.allow("loopback", "4:2")
        assert (await opened.post()).status_code == 202
        (sent,) = await opened.chat.replies(1)
        assert (sent.text, sent.address, sent.chat) == ("Hm.", {"chat": "4:2"}, "dm:4%3A2")
        assert (await opened.fetch(1)).status_code == 404


async def test_approval_of_a_webhook_turn_is_denied_without_a_question(db: AsyncSessionDB) -> None:
    shell = Shell()
    model = ScriptedModel([shell_reply("touch it"), "I may not.", shell_reply("touch it"), "Still not."])
    async with open_hooks(db, model, tools=[shell.tool], build=hook(to="loopback:ann")) as opened:
        await opened.post()
        await opened.chat.replies(1)
        assert approvals.NO_APPROVER in str(model.requests[-1].messages[-1].content)
        # The same holds for the turn of a notice in its conversation.
        found = await db.mail.inbound(1)
        await db.mail.add_inbox_entry((found and found.conversation_id) or "", "n1", "The build ended.", kind="process")
        opened.gateway.router.wake()
        sent = await opened.chat.replies(2)
    assert [(each.kind, each.text) for each in sent] == [("reply", "I may not."), ("reply", "Still not.")]
    assert shell.ran == []


async def test_refused_delivery_has_a_reason_and_notifies_no_chat(db: AsyncSessionDB) -> None:
    async def refuse(_incoming: gateway_platform.Incoming, _route: str) -> gateway_platform.AdmissionResult:
        return gateway_platform.AdmissionResult(False, message="No.", reason="limit", retry_after=59.2)

    async with open_hooks(db, ScriptedModel([]), [refuse], build=hook(to="loopback:42")) as opened:
        refused = await opened.post()
        assert (refused.status_code, error_of(refused)["message"]) == (429, "No.")
        assert refused.headers["retry-after"] == "60"
    assert set((await db.mail.counts()).values()) == {0}


def test_signature_is_that_of_the_specification() -> None:
    # The example of the reference libraries of Standard Webhooks.
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    signed = signatures.sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", body, 1614265330)
    assert signed[signatures.SIGNATURE] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


NOW = 1_000_000.0
GOOD = signatures.sign(SECRET, "7", BODY, NOW)
MAC = GOOD[signatures.SIGNATURE]


@pytest.mark.parametrize(
    ("changed", "body", "at"),
    [
        pytest.param(signatures.sign("another-secret-entirely", "7", BODY, NOW), BODY, NOW, id="other secret"),
        pytest.param({}, BODY + b" ", NOW, id="other body"),
        pytest.param({}, BODY, NOW + 301, id="too old"),
        pytest.param({}, BODY, NOW - 301, id="from the future"),
        pytest.param({signatures.ID: "8"}, BODY, NOW, id="other id"),
        pytest.param({signatures.TIMESTAMP: "1000001"}, BODY, NOW, id="other time"),
        pytest.param({signatures.TIMESTAMP: "١٠٠٠٠٠٠"}, BODY, NOW, id="Arabic digits"),
        pytest.param({signatures.SIGNATURE: ""}, BODY, NOW, id="no signature"),
        pytest.param({signatures.SIGNATURE: MAC.replace("v1", "v0")}, BODY, NOW, id="other version"),
        pytest.param({signatures.SIGNATURE: "v1,AA " * 20 + MAC}, BODY, NOW, id="too many"),
    ],
)
def test_invalid_signature_is_refused(changed: dict[str, str], body: bytes, at: float) -> None:
    assert signatures.verify(SECRET, GOOD, BODY, NOW + 299) == "7"
    signatures.verify(SECRET, {**GOOD, signatures.SIGNATURE: f"v1,AAAA v2,BBBB {MAC}"}, BODY, NOW)
    with pytest.raises(requests.HttpError) as refused:
        signatures.verify(SECRET, {**GOOD, **changed}, body, at)
    assert refused.value.status == 401


async def test_overheard_delivery_is_no_other_message_under_another_id(db: AsyncSessionDB) -> None:
    now, taken = time.time(), list[int]()
    six, seven = (signatures.sign(SECRET, each, BODY, now) for each in ("6", "7"))
    async with open_hooks(db, ScriptedModel(["One.", "Two."]), build=hook()) as opened:
        for signed, status in (
            (six, 202),
            (six, 202),
            ({**six, signatures.ID: "8"}, 401),
            (seven, 202),
            ({**seven, signatures.ID: "6"}, 401),
            # Signed again, as a sender that retries later has to: the same delivery.
            (signatures.sign(SECRET, "7", BODY, now + 1), 202),
            ({**seven, signatures.ID: "7.x"}, 400),
            ({**seven, signatures.ID: ""}, 401),
        ):
            answered = await opened.post(headers=signed)
            assert answered.status_code == status, (signed, answered.text)
            taken.extend([answered.json()["id"]] if status == 202 else [])
    assert len(set(taken)) == 2


async def test_github_delivery_is_identified_by_its_signed_body(db: AsyncSessionDB) -> None:
    body = b'{"action": "opened"}'
    made = "sha256=" + hmac.new(SECRET.encode(), body, "sha256").hexdigest()
    async with open_hooks(db, ScriptedModel(["Hm."]), git=hook(scheme="github")) as opened:

        async def post(signature: str, id: str = "d") -> httpx2.Response:
            known = {"x-hub-signature-256": signature, "x-github-delivery": id, "x-github-event": "issues"}
            return await opened.post(body, "git", headers=known)

        for wrong in ("", made[:-1], made.replace("sha256", "sha1"), made.upper()):
            assert (await post(wrong)).status_code == 401
        for delivery in ("d", "d", "e"):
            assert (await post(made, delivery)).json() == {"id": 1}
        key = f"git:={hashlib.sha256(body).hexdigest()}"
        (found,) = await gateways.wait_settled(db, key, platform="hooks")
        assert found.text == 'Posted to the webhook git (issues):\n\n{"action": "opened"}'


async def test_invalid_deliveries_are_refused(db: AsyncSessionDB) -> None:
    async with open_hooks(db, ScriptedModel([]), build=hook()) as opened:
        for refused, status in (
            (await opened.post(name="other"), 404),
            (await opened.post(b"not json"), 400),
            (await opened.post(b"[]"), 400),
            (await opened.post(headers={"content-type": "text/plain"}), 415),
            (await opened.post(id="x" * 201), 400),
            (await opened.client.get("/hooks/build/1"), 401),
            (await opened.client.get("/hooks/build"), 405),
        ):
            assert refused.status_code == status, refused.text
            error_of(refused)
    assert await db.mail.inbound(1) is None
    assert webhooks.message_text("a", "", "", {"text": "/new"}, b"") == "//new"
    assert webhooks.message_text("a", "", "x\ny", {}, b"{}") == "Posted to the webhook a:\n\n{}"


async def test_slow_client_cannot_shut_out_another(monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB) -> None:
    monkeypatch.setattr(webhooks, "MAX_UNVERIFIED", 3)
    waits, never = asyncio.Semaphore(0), asyncio.Event()

    async def dawdle() -> AsyncIterator[bytes]:
        yield b"{"
        waits.release()
        await never.wait()

    async with (
        open_hooks(db, ScriptedModel(["Hm."]), build=hook()) as opened,
        client_of(opened.platform, peer="203.0.113.9") as other,
    ):
        posts = [asyncio.create_task(other.post("/hooks/build", content=dawdle())) for _ in range(3)]
        for _ in posts:
            await waits.acquire()
        assert (await opened.post()).status_code == 202
        assert (await posts[0]).status_code == 408  # The busiest client loses its oldest read.
        for post in posts[1:]:
            post.cancel()
        await asyncio.wait(posts)


@asynccontextmanager
async def listen(take: Any) -> AsyncIterator[str]:
    """Serve requests at a local address; yield it."""
    listening = server.bind("127.0.0.1", 0, has_tokens=False)
    routes = [Route("/{path}", take, methods=["GET", "POST"])]
    async with server.serve(Router(routes), listening):
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/take"


async def test_reply_is_posted_with_a_signature_that_is_no_delivery(db: AsyncSessionDB) -> None:
    got = asyncio.get_running_loop().create_future()

    async def take(request: Request) -> Response:
        got.set_result((dict(request.headers), await request.body()))
        return Response(status_code=204)

    async with listen(take) as at, open_hooks(db, ScriptedModel(["Done."]), build=hook(to=at)) as opened:
        await opened.post()
        headers, body = await got
        signatures.verify(SECRET, headers, body, time.time())
        assert msgspec.json.decode(body) == {"id": 1, "hook": "build", "kind": "reply", "part": 0, "text": "Done."}
        signed = {name: headers[name] for name in (signatures.ID, signatures.TIMESTAMP, signatures.SIGNATURE)}
        assert signed[signatures.ID].startswith("reply-build-")
        for known in (signed[signatures.ID], "17", ""):
            assert (await opened.post(body, headers={**signed, signatures.ID: known})).status_code == 401


@pytest.mark.parametrize(
    ("status", "raised"),
    [(301, errors.SendRefused), (404, errors.SendRefused), (429, errors.SendFailed), (503, errors.SendFailed)],
)
async def test_response_of_a_callback_decides_whether_it_is_sent_again(status: int, raised: type[Exception]) -> None:
    paths: list[str] = []

    async def take(request: Request) -> Response:
        paths.append(request.url.path)
        return Response(status_code=status, headers={"location": "/elsewhere", "retry-after": "7"})

    async with listen(take) as at:
        with pytest.raises(raised) as refused:
            await callbacks.CallbackPoster().post(at, {}, b"{}", allow_private=False)
        assert getattr(refused.value, "retry_after", 7.0) == 7.0
    assert paths == ["/take"]


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::"]
)
async def test_callback_to_a_private_address_is_refused(address: str) -> None:
    assert not callbacks.may_reach(address, allow_private=False)
    poster = callbacks.CallbackPoster(lambda _host, _port: ["93.184.215.14", address])
    with pytest.raises(errors.SendRefused, match="private address"):
        await poster.post("https://callback.example/", {}, b"{}", allow_private=False)


def test_public_addresses_are_reached_and_private_ones_if_allowed() -> None:
    assert callbacks.may_reach("93.184.215.14", allow_private=False)
    assert callbacks.may_reach("2606:2800:220:1::1", allow_private=False)
    assert callbacks.may_reach("10.0.0.1", allow_private=True)
    assert not callbacks.may_reach("169.254.169.254", allow_private=True)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (hook(to="http://callback.example/"), "build"),
        (hook(to="https://user:pass@callback.example/"), "build"),
        (hook(to="https://10.0.0.1/"), "build"),
        (hook(to="file:///etc/passwd"), "build"),
        (hook(to="loopback"), "build"),
        (hook("hunter2"), "SECRET"),
        (hook("whsec_not base64 at all"), "base64"),
    ],
)
def test_invalid_hook_setting_is_named_at_the_start(wrong: webhooks.HookConfig, named: str) -> None:
    with pytest.raises(errors.SettingInvalid, match=named) as refused:
        wrong.check("build")
    assert "hunter2" not in str(refused.value)
