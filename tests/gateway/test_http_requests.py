"""Requests that are invalid, too large, unauthenticated or for another host are refused with an error object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from holdfast import AsyncSessionDB, errors
from holdfast.gateway import settings
from holdfast.gateway.platforms.http import http_platform, requests, server
from holdfast.model import ScriptedModel
from tests.support import gateways, http_gateway
from tests.support.http_gateway import ANN, BOB, PATH, TOKENS, client_of, error_of, open_web, text_of
from tests.support.polling import until_async

USER = {"role": "user", "content": "Hi"}
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
DATA_PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def with_part(part: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [part]}]}


def with_picture(url: str) -> dict[str, Any]:
    return with_part({"type": "image_url", "image_url": {"url": url}})


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [USER, {"role": "assistant", "content": "Hello"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}, USER]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}, USER]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "system", "content": [PICTURE]}, USER]}, "messages[0].content[0]"),
        (with_part(PICTURE), "messages[0].content[0].image_url"),
        (with_picture("data:image/png;base64,***"), "messages[0].content[0].image_url"),
        (with_picture("file:///etc/passwd"), "messages[0].content[0].image_url"),
        (with_part({"type": "input_audio", "input_audio": {}}), "messages[0].content[0]"),
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
async def test_invalid_parameter_is_named_and_not_stored(wrong: dict[str, Any], param: str, db: AsyncSessionDB) -> None:
    async with open_web(db, ScriptedModel([])) as web:
        refused = await web.post({"messages": [USER], **wrong})
        assert (refused.status_code, error_of(refused)["param"]) == (400, param)
    assert await db.mail.inbound(1) is None


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"[]", {}, 400),
        (b'{"model": NaN}', {}, 400),
        (b'{"model": "\xff\xfe"}', {}, 400),
        (b'{"a":' * 80 + b"1" + b"}" * 80, {}, 400),
        (b"{}", {"content-type": "application/json; charset=latin-1"}, 415),
        (b"{}", {"content-encoding": "gzip"}, 415),
        (b" " * (40 * 1024 * 1024), {}, 413),
        (b"{}", {"x-conversation-id": "x" * 201}, 400),
        (b"{}", {"idempotency-key": ""}, 400),
        (b'{"model": "gpt-4", "messages": [{"role": "user", "content": "Hi"}]}', {}, 404),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_invalid_input_is_refused(body: bytes, headers: dict[str, str], status: int, db: AsyncSessionDB) -> None:
    async with open_web(db, ScriptedModel([])) as web:
        sent = ANN | {"content-type": "application/json"} | headers
        whole = body if body != b"{}" else msgspec.json.encode({"model": "holdfast", "messages": [USER]})
        refused = await web.client.post(PATH, content=whole, headers=sent)
        assert refused.status_code == status
        error_of(refused)
    assert await db.mail.inbound(1) is None


async def test_body_without_a_length_is_measured_as_it_arrives(db: AsyncSessionDB) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100_000):
            yield b" " * 10_000

    async with open_web(db, ScriptedModel([]), wanted=settings.Http(body=100)) as web:
        sent = ANN | {"content-type": "application/json"}
        assert (await web.client.post(PATH, content=endless(), headers=sent)).status_code == 413


async def wait_forever(*_: Any) -> Any:
    await asyncio.Event().wait()


SCOPE = {"type": "http", "headers": [(b"host", b"localhost")], "path": "/", "raw_path": b"/", "method": "POST"}


async def test_body_that_does_not_arrive_times_out() -> None:
    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    filtered = requests.RequestFilter(app, max_body=10, hosts=requests.LOCAL_HOSTS, read_seconds=0.0)
    await filtered(SCOPE, wait_forever, send)
    assert sent[0]["status"] == 408


async def test_response_that_is_not_read_times_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "holdfast.gateway")

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    app = requests.json_response({})
    filtered = requests.RequestFilter(app, max_body=10, hosts=requests.LOCAL_HOSTS, write_seconds=0.0)
    async with asyncio.timeout(60):
        await filtered(SCOPE | {"method": "GET"}, receive, wait_forever)
    assert caplog.messages == ["a client did not read its response within 0 s"]


async def test_unknown_path_or_method_is_refused(db: AsyncSessionDB) -> None:
    requested = [("GET", path) for path in ("/", "/v1//models", "/hooks/any", PATH)] + [("OPTIONS", "/v1/models")]
    async with open_web(db, ScriptedModel([])) as web:
        for method, path in requested:
            url = web.client.base_url.copy_with(raw_path=path.encode())
            refused = await web.client.request(method, url, headers=dict(ANN))
            is_known = path in (PATH, "/v1/models")
            assert (refused.status_code, "allow" in refused.headers) == (405 if is_known else 404, is_known), path
            error_of(refused)
            assert not any(name.startswith("access-control") for name in refused.headers)


# --- access -----------------------------------------------------------------------------------------------


async def test_request_without_a_valid_token_is_refused(db: AsyncSessionDB) -> None:
    token = "token-of-ann-0123456789"
    wrong = [{"authorization": each} for each in (token, f"Basic {token}", f"Bearer {token[:-1]}")]
    async with open_web(db, ScriptedModel([])) as web:
        for headers in ({}, {"api-key": token}, *wrong):
            for refused in (await web.ask("Hi", headers=headers), await web.client.get("/v1/models", headers=headers)):
                assert (refused.status_code, error_of(refused)["type"]) == (401, "authentication_error")
                assert refused.headers["www-authenticate"] == "Bearer"
        valid = {"authorization": f"bearer  {token} "}
        assert (await web.client.get("/v1/models", headers=valid)).status_code == 200


@pytest.mark.parametrize("token", ["", "x" * 15, "with a space in it", "a\nb" + "x" * 20, "é" * 20])
def test_weak_or_invalid_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(errors.SettingInvalid, match="ann") as refused:
        requests.Tokens({token: "ann"})
    assert not token or token not in str(refused.value)


async def test_refused_sender_writes_nothing_not_even_its_history(db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="http", owner="http:bob")
    before = {"role": "user", "content": [{"type": "text", "text": "BOBWROTE"}, DATA_PICTURE]}
    body = {"user": "x", "messages": [before, {"role": "assistant", "content": "Yes."}, USER]}
    async with open_web(db, ScriptedModel(["Hello!"]), checks=[http_gateway.refuse_bob]) as web:
        for headers in (BOB, BOB | {"x-conversation-id": "talk"}):
            assert (await web.post(body, headers)).status_code == 403
        assert len(await db.list_sessions()) == 1
        assert await db.run(lambda: db.db.driver.read(lambda tx: tx.all("blobs_all"))) == []
        assert await db.routes() == []
        answered = await web.post(body)  # The same request of an admitted sender is stored.
        assert text_of(answered) == "Hello!"
        said = await db.transcript(answered.headers["x-conversation-id"])
        assert "BOBWROTE" in str([each.content for each in said])


FOREIGN_HOSTS = ["evil.example", "127.0.0.1.evil.example", "localhost:8642@evil.example", "localhost:x", "0.0.0.0"]


async def test_only_local_host_names_are_served_at_a_local_address(db: AsyncSessionDB) -> None:
    async with client_of(http_platform.HttpPlatform(db)) as client:
        for host in ("localhost:8642", "[::1]:8642", *FOREIGN_HOSTS):
            answered = await client.get("/v1/models", headers={"host": host})
            assert answered.status_code == (421 if host in FOREIGN_HOSTS else 200), host


async def test_any_host_name_is_served_at_a_public_address(db: AsyncSessionDB) -> None:
    wide = http_platform.HttpPlatform(db, settings.Http(host="0.0.0.0"), tokens=TOKENS)
    async with client_of(wide, "agent.example") as client:
        assert (await client.get("/v1/models", headers=ANN)).status_code == 200
    assert requests.served_hosts("0.0.0.0", "0.0.0.0") is None
    assert requests.served_hosts("::1", "::1") == requests.LOCAL_HOSTS


async def test_proxy_hosts_and_pages_of_listed_origins_are_served(db: AsyncSessionDB) -> None:
    page = "https://chat.example"
    wanted = settings.Http(port=0, hosts=["Chat.example"], origins=[page])
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    async with open_web(db, ScriptedModel(["Hello!"]), wanted=wanted) as web, web.platform.serve():
        for origin, allowed in ((page, page), ("https://evil.example", None)):
            sent = {"host": "chat.example", "origin": origin}
            preflight = await web.client.options(PATH, headers=sent | asks)
            refused = await web.client.get("/v1/models", headers=sent)
            assert refused.status_code == 401
            for answered in (preflight, refused):
                assert answered.headers.get("access-control-allow-origin") == allowed
        answered = await web.ask("Hi", headers=ANN | {"host": "chat.example", "origin": page})
        assert text_of(answered) == "Hello!"
        assert "X-Conversation-Id" in answered.headers["access-control-expose-headers"]
        other = await web.client.get("/v1/models", headers=ANN | {"host": "evil.example"})
        assert (other.status_code, "hosts" in error_of(other)["message"]) == (421, True)
    async with client_of(http_platform.HttpPlatform(db, settings.Http(origins=[page]))) as client:
        found = [await client.get("/v1/models", headers={"origin": each}) for each in (page, "x://y")]
        assert [each.status_code for each in found] == [200, 403]
        assert error_of(found[1])["code"] == "origin"
    with pytest.raises(errors.SettingInvalid, match="token"):
        async with http_platform.HttpPlatform(db, wanted).serve():
            pass


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (settings.Http(conversation_header="Authorization"), "conversation_header"),
        (settings.Http(hosts=["https://chat.example"]), "hosts"),
        (settings.Http(origins=["chat.example"]), "origins"),
        (settings.Http(side_requests=[" "]), "side_requests"),
    ],
)
def test_invalid_http_setting_is_named(wrong: settings.Http, name: str) -> None:
    found = settings.GatewaySettings(http=wrong).find_problem()
    assert found[0] == ("http", name)
    right = settings.Http(conversation_header="X-Chat-Id", hosts=["chat.example", "::1"], origins=["http://a:3000"])
    assert settings.GatewaySettings(http=right).find_problem() is None


async def test_health_and_metrics_report_without_names(db: AsyncSessionDB) -> None:
    async with open_web(db, ScriptedModel(["Hello!"])) as web:
        await web.ask("Hi")
        await gateways.wait_idle(web.gateway, db)
        health = await web.client.get("/health")
        assert health.json() == {"status": "ok", "live": True, "ready": True, "store": True}
        assert (await web.client.get("/metrics")).status_code == 401
        metrics = await web.client.get("/metrics", headers=ANN)
        assert 'holdfast_inbound_total{platform="http"} 1' in metrics.text
        assert 'holdfast_outcomes_total{outcome="answered",platform="http"} 1' in metrics.text
        assert "holdfast_turn_seconds_count 1" in metrics.text
        assert "holdfast_outbox_depth 0" in metrics.text
        assert "ann" not in metrics.text
    async with client_of(http_platform.HttpPlatform(db)) as client:
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.get("/metrics", headers={"origin": "https://evil.example"})).status_code == 403


async def test_health_reports_an_unavailable_store(db: AsyncSessionDB) -> None:
    closed = AsyncSessionDB(type(db.db)(":memory:"))
    platform = http_platform.HttpPlatform(closed)
    await closed.close()
    async with client_of(platform) as client:
        health = await client.get("/health")
        assert (health.status_code, health.json()["store"]) == (503, False)


# --- the server -------------------------------------------------------------------------------------------


def test_address_that_is_taken_or_unknown_is_reported() -> None:
    with server.bind("127.0.0.1", 0, has_tokens=False) as taken:
        with pytest.raises(errors.HoldfastError, match="running already") as refused:
            server.bind("127.0.0.1", taken.getsockname()[1], has_tokens=False)
        # The port may become free, so a service manager should start the gateway again.
        assert not isinstance(refused.value, errors.SettingInvalid)
        with pytest.raises(errors.SettingInvalid, match="not an address"):
            server.bind("no.such.host.invalid", 0, has_tokens=True)


async def test_connections_over_the_limit_are_answered_with_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "connection_limit", lambda: 3)
    go, asked = asyncio.Event(), asyncio.Semaphore(0)

    async def hold(_: Request) -> Response:
        asked.release()
        await go.wait()
        return Response("ok")

    async def is_served() -> bool:
        return (await client.get(url)).text == "ok"

    listening = server.bind("127.0.0.1", 0, has_tokens=False)
    url, closing = f"http://127.0.0.1:{listening.getsockname()[1]}/", {"connection": "close"}
    async with server.serve(Router([Route("/", hold)]), listening), httpx2.AsyncClient(headers=closing) as client:
        busy = [asyncio.create_task(client.get(url)) for _ in range(2)]
        for _ in busy:
            await asked.acquire()
        assert (await client.get(url)).status_code == 503
        go.set()
        assert [each.text for each in await asyncio.gather(*busy)] == ["ok", "ok"]
        await until_async(is_served)  # The server may count a closed connection for a moment.


GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
LENGTHS = b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
TWO_LENGTHS = b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\n" + LENGTHS


async def test_malformed_request_ends_its_connection_only(db: AsyncSessionDB) -> None:
    async def ask(data: bytes) -> list[bytes]:
        """Return the status lines of all responses on one connection."""
        reader, writer = await asyncio.open_connection(*address)
        writer.write(data)
        lines = (await reader.read()).split(b"\r\n")
        writer.close()
        return [line[:12] for line in lines if line.startswith(b"HTTP/")]

    listening = server.bind("127.0.0.1", 0, has_tokens=False)
    address = listening.getsockname()
    async with server.serve(http_platform.HttpPlatform(db).app, listening), asyncio.timeout(60):
        for malformed in (GET + b"X: " + b"x" * server.MAX_HEAD_BYTES, TWO_LENGTHS % (len(GET) + 7) + GET + b"\r\n"):
            assert await ask(malformed) == [b"HTTP/1.1 400"]
            assert await ask(GET + b"\r\n") == [b"HTTP/1.1 200"]
