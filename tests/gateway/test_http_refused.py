"""Every request that is not as it has to be is refused, by the status that fits and an error object."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
import pytest

from holdfast import AsyncSessionDB, errors
from holdfast.gateway import limits
from holdfast.gateway import settings as said
from holdfast.gateway.platforms.http import http_platform, requests, server
from holdfast.model import ScriptedModel
from tests.support import gateways, http_gateway

USER = {"role": "user", "content": "Hi"}
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


def with_part(part: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [part]}]}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": 7}, "model"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": {}}, "messages"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": [USER, {"role": "assistant", "content": "Hello"}]}, "messages"),
    ({"messages": [{"role": "system", "content": "Be brief"}]}, "messages"),
    ({"messages": [{"role": "user", "content": "  "}]}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages"),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}, USER]}, "messages[0].role"),
    ({"messages": [{"role": "function", "content": "x"}, USER]}, "messages[0].role"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}, USER]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ({"messages": [{"role": "system", "content": [PICTURE]}, USER]}, "messages[0].content[0]"),
    (with_part(PICTURE), "messages[0].content[0].image_url"),
    (
        with_part({"type": "image_url", "image_url": {"url": "data:text/html;base64,AAAA"}}),
        "messages[0].content[0].image_url",
    ),
    (
        with_part({"type": "image_url", "image_url": {"url": "data:image/png;base64,***"}}),
        "messages[0].content[0].image_url",
    ),
    (with_part({"type": "image_url", "image_url": {"url": "data:image/png,AAAA"}}), "messages[0].content[0].image_url"),
    (with_part({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}), "messages[0].content[0].image_url"),
    (with_part({"type": "image_url"}), "messages[0].content[0].image_url"),
    (with_part({"type": "input_audio", "input_audio": {}}), "messages[0].content[0]"),
    (with_part({"type": "text", "text": None}), "messages[0].content[0]"),
    (with_part("Hi"), "messages[0].content[0]"),
    ({"n": 2}, "n"),
    ({"n": True}, "n"),
    ({"n": 0}, "n"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": "text"}, "response_format"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"logprobs": True}, "logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options"),
]


async def test_what_cannot_be_meant_is_refused_by_name_and_nothing_is_stored(db: AsyncSessionDB) -> None:
    async with http_gateway.open_web(db, ScriptedModel([])) as open_:
        for wrong, param in WRONG:
            body = {"model": "holdfast", "messages": [USER], **wrong}
            refused = await open_.client.post(http_gateway.PATH, json=body, headers=dict(http_gateway.ANN))
            assert (refused.status_code, http_gateway.error_of(refused)["param"]) == (400, param), wrong
        unknown = await open_.ask("Hi", model="gpt-4")
        assert (unknown.status_code, http_gateway.error_of(unknown)["code"]) == (404, "model_not_found")
    assert (await db.mail.counts())["arrivals_open"] == 0
    assert await db.mail.inbound(1) is None


DEEP = b'{"a":' * 80 + b"1" + b"}" * 80
BODIES: list[tuple[bytes, dict[str, str], int]] = [
    (b"", {}, 400),
    (b"[]", {}, 400),
    (b"7", {}, 400),
    (b"{", {}, 400),
    (b'{"model": NaN}', {}, 400),
    (b'{"model": "\xff\xfe"}', {}, 400),
    (b'\xef\xbb\xbf{"model": "holdfast"}', {}, 400),
    (DEEP, {}, 400),
    (b"[" * 200_000, {}, 400),
    (b'{"a":' * 100_000, {}, 400),
    (b"{}", {"content-type": "text/plain"}, 415),
    (b"{}", {"content-type": ""}, 415),
    (b"{}", {"content-type": "application/json; charset=latin-1"}, 415),
    (b"{}", {"content-type": "application/x-www-form-urlencoded"}, 415),
    (b"{}", {"content-type": "application/jsonp"}, 415),
    (b"{}", {"content-encoding": "gzip"}, 415),
    (b" " * (40 * 1024 * 1024), {}, 413),
    (b"{}", {"x-conversation-id": "x" * 201}, 400),
    (b"{}", {"idempotency-key": ""}, 400),
]


async def test_bodies_and_headers_that_are_wrong_are_refused(db: AsyncSessionDB) -> None:
    async with http_gateway.open_web(db, ScriptedModel([])) as open_:
        for body, headers, status in BODIES:
            sent = http_gateway.ANN | {"content-type": "application/json"} | headers
            whole = body if body != b"{}" else msgspec.json.encode({"model": "holdfast", "messages": [USER]})
            refused = await open_.client.post(http_gateway.PATH, content=whole, headers=sent)
            assert refused.status_code == status, (body[:40], headers, refused.text)
            http_gateway.error_of(refused)
    assert await db.mail.inbound(1) is None


async def test_a_body_without_a_length_is_measured_as_it_comes(db: AsyncSessionDB) -> None:
    async def endless():  # type: ignore[no-untyped-def]
        for _ in range(100_000):
            yield b" " * 10_000

    async with http_gateway.open_web(db, ScriptedModel([]), wanted=said.Http(body=100)) as open_:
        headers = http_gateway.ANN | {"content-type": "application/json"}
        refused = await open_.client.post(http_gateway.PATH, content=endless(), headers=headers)
        assert refused.status_code == 413


def test_a_body_that_does_not_come_is_not_waited_for_for_ever() -> None:
    async def told() -> list[Any]:
        async def inner(scope: Any, receive: Any, send: Any) -> None:
            await receive()

        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def never() -> Any:
            await asyncio.Event().wait()

        scope = {"type": "http", "headers": [(b"host", b"localhost")], "path": "/", "raw_path": b"/", "method": "POST"}
        await requests.RequestFilter(inner, max_body=10, hosts=requests.LOCAL_HOSTS, read_seconds=0.0)(
            scope, never, send
        )
        return sent

    assert asyncio.run(told())[0]["status"] == 408


async def test_who_does_not_take_an_answer_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "WRITE_SECONDS", 0.0)

    async def never(_: Any) -> None:
        await asyncio.Event().wait()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "headers": [(b"host", b"localhost")], "path": "/", "raw_path": b"/", "method": "GET"}
    await requests.RequestFilter(requests.json_response({}), max_body=10, hosts=requests.LOCAL_HOSTS)(
        scope, receive, never
    )


PATHS: list[tuple[str, str, int]] = [
    ("GET", "/", 404),
    ("GET", "/v1", 404),
    ("GET", "/v1/models/", 404),
    ("GET", "/v1/models/other", 404),
    ("GET", "/v1//models", 404),
    ("GET", "/V1/models", 404),
    ("GET", "/hooks/any", 404),
    ("GET", "/v1/chat/completions", 405),
    ("DELETE", "/v1/models", 405),
    ("OPTIONS", "/v1/models", 405),
    ("PUT", "/health", 405),
    ("POST", "/openapi.json", 405),
    ("PATCH", "/v1/chat/completions", 405),
    ("POST", "/v1/responses", 404),
]


async def test_unknown_paths_and_methods_are_told_as_json(db: AsyncSessionDB) -> None:
    async with http_gateway.open_web(db, ScriptedModel([])) as open_:
        for method, path, status in PATHS:
            url = open_.client.base_url.copy_with(raw_path=path.encode())
            refused = await open_.client.request(method, url, headers=dict(http_gateway.ANN))
            assert refused.status_code == status, (method, path)
            http_gateway.error_of(refused)
            assert ("allow" in refused.headers) == (status == 405)
            assert not any(name.startswith("access-control") for name in refused.headers)


TOKENS: list[dict[str, str]] = [
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": "Bearer "},
    {"authorization": "token-of-ann-0123456789"},
    {"authorization": "Basic token-of-ann-0123456789"},
    {"authorization": "Bearer token-of-ann-012345678"},
    {"authorization": "Bearer token-of-ann-01234567890"},
    {"authorization": "Bearer TOKEN-OF-ANN-0123456789"},
    {"authorization": "Bearer ann"},
    {"api-key": "token-of-ann-0123456789"},
]


async def test_who_does_not_say_who_they_are_is_refused(db: AsyncSessionDB) -> None:
    async with http_gateway.open_web(db, ScriptedModel([])) as open_:
        for headers in TOKENS:
            for refused in (await open_.ask("Hi", headers=headers), await _models(open_, headers)):
                assert (refused.status_code, http_gateway.error_of(refused)["type"]) == (401, "authentication_error")
                assert refused.headers["www-authenticate"] == "Bearer"
        assert (await _models(open_, http_gateway.ANN)).status_code == 200
        assert (await _models(open_, {"authorization": "bearer  token-of-ann-0123456789 "})).status_code == 200


async def _models(open_: http_gateway.Web, headers: Any) -> Any:
    return await open_.client.get("/v1/models", headers=dict(headers))


HOSTS: list[tuple[str, bool]] = [
    ("localhost", True),
    ("localhost:8642", True),
    ("127.0.0.1:1", True),
    ("[::1]:8642", True),
    ("LOCALHOST", True),
    ("evil.example", False),
    ("evil.example:8642", False),
    ("localhost.evil.example", False),
    ("127.0.0.1.evil.example", False),
    ("localhost:8642@evil.example", False),
    ("localhost:x", False),
    ("[::1", False),
    ("[::1]x", False),
    ("", False),
    ("0.0.0.0", False),
]


async def test_a_name_that_somebody_else_points_here_is_not_served(db: AsyncSessionDB) -> None:
    near, wide = (
        http_platform.HttpPlatform(db),
        http_platform.HttpPlatform(db, said.Http(host="0.0.0.0"), tokens=http_gateway.TOKENS),
    )
    async with http_gateway.client_of(near) as client, http_gateway.client_of(wide, "agent.example") as elsewhere:
        for host, served in HOSTS:
            answered = await client.get("/v1/models", headers={"host": host})
            assert answered.status_code == (200 if served else 421), host
        assert (await elsewhere.get("/v1/models", headers=http_gateway.ANN)).status_code == 200


async def test_without_a_token_no_page_of_a_browser_is_answered(db: AsyncSessionDB) -> None:
    async with http_gateway.client_of(http_platform.HttpPlatform(db)) as client:
        refused = await client.get("/v1/models", headers={"origin": "https://evil.example"})
        assert (refused.status_code, http_gateway.error_of(refused)["code"]) == (403, "origin")


async def test_behind_a_proxy_its_hosts_and_the_pages_of_its_origins_are_served(db: AsyncSessionDB) -> None:
    page, wanted = (
        "https://chat.example",
        said.Http(port=0, hosts=["Chat.example"], origins=["https://chat.example"]),
    )
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    async with http_gateway.open_web(db, ScriptedModel(["Hello!"]), wanted=wanted) as open_, open_.platform.serve():
        for origin, allowed in ((page, page), ("https://evil.example", None)):
            sent = {"host": "chat.example", "origin": origin}
            preflight = await open_.client.options(http_gateway.PATH, headers=sent | asks)
            refused = await open_.client.get("/v1/models", headers=sent)
            assert refused.status_code == 401
            for answered in (preflight, refused):
                assert answered.headers.get("access-control-allow-origin") == allowed
        answered = await open_.ask("Hi", headers=http_gateway.ANN | {"host": "chat.example", "origin": page})
        assert http_gateway.text_of(answered) == "Hello!"
        assert "X-Conversation-Id" in answered.headers["access-control-expose-headers"]
        other = await open_.client.get("/v1/models", headers=http_gateway.ANN | {"host": "evil.example"})
        assert (other.status_code, "hosts" in http_gateway.error_of(other)["message"]) == (421, True)
    async with http_gateway.client_of(http_platform.HttpPlatform(db, said.Http(origins=[page]))) as client:
        found = [(await client.get("/v1/models", headers={"origin": each})).status_code for each in (page, "x://y")]
        assert found == [200, 403]
    with pytest.raises(errors.SettingInvalid, match="token"):
        async with http_platform.HttpPlatform(db, wanted).serve():
            pass


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (said.Http(conversation_header="Authorization"), "conversation_header"),
        (said.Http(hosts=["https://chat.example"]), "hosts"),
        (said.Http(hosts=["chat.example:80"]), "hosts"),
        (said.Http(origins=["chat.example"]), "origins"),
        (said.Http(origins=["https://chat.example/"]), "origins"),
        (said.Http(side_requests=[" "]), "side_requests"),
    ],
)
def test_settings_of_http_that_cannot_be_meant_are_named(wrong: said.Http, name: str) -> None:
    found = said.GatewaySettings(http=wrong).find_problem()
    assert found is not None
    assert found[0] == ("http", name)
    right = said.Http(
        conversation_header="X-OpenWebUI-Chat-Id", hosts=["chat.example", "::1"], origins=["http://a:3000"]
    )
    assert said.GatewaySettings(http=right).find_problem() is None


async def test_a_picture_within_the_limit_of_attachments_is_not_too_large_for_a_request(db: AsyncSessionDB) -> None:
    guards = [limits.RateLimits(db, said.GatewayLimits())]
    async with http_gateway.open_web(db, ScriptedModel(["Nice."]), checks=guards) as open_:
        for size, status in ((20_000_000, 200), (20_000_001, 413)):
            url = "data:image/png;base64," + base64.b64encode(bytes(size)).decode()
            body = {"model": "holdfast", **with_part({"type": "image_url", "image_url": {"url": url}})}
            assert (
                await open_.client.post(http_gateway.PATH, json=body, headers=dict(http_gateway.ANN))
            ).status_code == status
        other = await open_.client.post("/v1/models", content=bytes(1024 * 1024 + 1), headers=dict(http_gateway.ANN))
        assert other.status_code == 413


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_others_are_not_let_in_without_a_token(host: str) -> None:
    with pytest.raises(errors.SettingInvalid, match="Set a token"):
        server.bind(host, 0, has_tokens=False)


def test_a_port_that_is_taken_is_told_in_a_sentence() -> None:
    with server.bind("127.0.0.1", 0, has_tokens=False) as taken:
        with pytest.raises(errors.SettingInvalid, match="running already"):
            server.bind("127.0.0.1", taken.getsockname()[1], has_tokens=False)
        with pytest.raises(errors.SettingInvalid, match="not an address"):
            server.bind("no.such.host.invalid", 0, has_tokens=True)


@pytest.mark.parametrize("token", ["", "short", "x" * 15, "with a space in it", "a\nb" + "x" * 20, "é" * 20])
def test_a_token_that_can_be_guessed_or_never_sent_is_no_token(token: str) -> None:
    with pytest.raises(errors.SettingInvalid, match="ann") as refused:
        requests.Tokens({token: "ann"})
    assert not token or token not in str(refused.value)


async def test_health_and_metrics_tell_what_they_should_and_no_more(db: AsyncSessionDB) -> None:
    async with http_gateway.open_web(db, ScriptedModel(["Hello!"])) as open_:
        await open_.ask("Hi")
        await gateways.quiet(open_.gateway, db)
        health = await open_.client.get("/health")
        assert health.json() == {"status": "ok", "live": True, "ready": True, "store": True}
        assert (await open_.client.get("/metrics")).status_code == 401
        told = await open_.client.get("/metrics", headers=http_gateway.ANN)
        assert told.status_code == 200
        assert 'holdfast_inbound_total{platform="http"} 1' in told.text
        assert 'holdfast_outcomes_total{outcome="answered",platform="http"} 1' in told.text
        assert "holdfast_turn_seconds_count 1" in told.text
        assert "holdfast_outbox_depth 0" in told.text
        assert "ann" not in told.text
    here = http_platform.HttpPlatform(db)
    async with http_gateway.client_of(here) as client:
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.get("/metrics", headers={"origin": "https://evil.example"})).status_code == 403


async def test_health_says_when_the_store_is_away(db: AsyncSessionDB) -> None:
    other = AsyncSessionDB(type(db.db)(":memory:"))
    platform = http_platform.HttpPlatform(other)
    await other.close()
    async with http_gateway.client_of(platform) as client:
        health = await client.get("/health")
        assert (health.status_code, health.json()["store"]) == (503, False)


# --- over a real connection ------------------------------------------------------------------------------


async def _raw(address: str, sent: bytes) -> bytes:
    host, _, port = address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(sent)
        await writer.drain()
        return await reader.read(65_536)
    finally:
        writer.close()


async def test_what_is_no_request_at_all_is_refused_and_harms_nobody(db: AsyncSessionDB) -> None:
    platform = http_platform.HttpPlatform(db, said.Http(port=0))
    async with platform.serve() as address:
        for sent, status in (
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", b"400"),
            (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"400"),
            (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40_000, b"4"),
            (b"GET http://evil.example/health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", b"4"),
            (b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"503"),
        ):
            found = await _raw(address, sent)
            assert found.split(b" ")[1].startswith(status), found[:200]
