"""The HTTP client: every event arrives whole, and every failure is a model error without a secret."""

from __future__ import annotations

import asyncio
import gc
import ssl
from contextlib import aclosing

import httpx2
import pytest
import trustme

from holdfast import errors
from holdfast.model import http, provider_errors
from tests.support import provider_process, replay_server
from tests.support.replay_server import Answer, Server

ADVICE = provider_errors.Advice(model="some/model", key="Set SOME_KEY.", reach="Start it with `serve`.")
KEY = "hunter22-secret"
HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
BODY = b'{"messages":[{"content":"a private message"}]}'


async def read(url: str, *, headers: dict[str, str] = HEADERS, timeout: float = 5.0) -> list[httpx2.ServerSentEvent]:
    client = http.HttpClient(ADVICE, headers, timeout=timeout)
    received: list[httpx2.ServerSentEvent] = []
    try:
        async with aclosing(client.post_stream(url, BODY)) as events:
            async for event in events:
                received += [event]
    except errors.ModelError as error:
        error.received = received  # type: ignore[attr-defined]
        raise
    finally:
        await client.close()
    return received


async def read_answer(answer: Answer) -> list[httpx2.ServerSentEvent]:
    async with Server(answer) as server:
        return await read(server.url)


async def read_failure(
    answer: Answer, kind: type[errors.ModelError] = errors.ModelError, timeout: float = 5.0
) -> errors.ModelError:
    async with Server(answer) as server:
        with pytest.raises(kind) as caught:
            await read(server.url, timeout=timeout)
    assert KEY not in str(caught.value)
    assert "private" not in str(caught.value)
    return caught.value


async def read_data(client: http.HttpClient, url: str) -> list[str]:
    return [event.data async for event in client.post_stream(url, b"{}")]


STREAM = "data: Grüße 🌊\n\nevent: named\ndata: one\ndata: two\n\n: keep-alive\n\ndata:three\n\n".encode()
EVENTS = [
    httpx2.ServerSentEvent("message", "Grüße 🌊"),
    httpx2.ServerSentEvent("named", "one\ntwo"),
    httpx2.ServerSentEvent("message", "three"),
]


@pytest.mark.parametrize("kind", [None, "text/plain", "text/event-stream; charset=latin-1"])
async def test_stream_is_utf8_with_any_content_type(kind: str | None) -> None:
    assert await read_answer(Answer([STREAM], headers={"content-type": kind} if kind else {})) == EVENTS


async def test_cut_connection_is_a_cut_after_an_event_and_unreachable_before() -> None:
    error = await read_failure(Answer([replay_server.events("one"), b"data: tw"], cut=True), errors.ModelCut)
    assert error.received == [httpx2.ServerSentEvent("message", "one")]  # type: ignore[attr-defined]
    assert (await read_failure(Answer([b"data: on"], cut=True), errors.ModelUnreachable)).retryable


async def test_silence_is_an_error_before_and_after_the_first_event() -> None:
    error = await read_failure(Answer(hang=True), errors.ModelUnreachable, timeout=0.05)
    assert "0.05 seconds" in str(error)
    for timeout in (0.2, 2.0, 20.0):  # on a busy machine the first event may arrive too late
        error = await read_failure(Answer([replay_server.events("one")], hang=True), timeout=timeout)
        if isinstance(error, errors.ModelCut):
            break
    assert isinstance(error, errors.ModelCut)


async def test_unreachable_server_is_reported_with_address_reason_and_advice() -> None:
    async with Server(Answer()) as server:
        url = server.url
    with pytest.raises(errors.ModelUnreachable) as caught:
        await read(f"{url.replace('://', '://me:hunter22@')}/v1?key=hunter22")
    assert str(caught.value) == f"some/model ({url}) cannot be reached: connection refused. Start it with `serve`."
    with pytest.raises(errors.ModelUnreachable, match=r"\(https?://nowhere\.invalid\) cannot be reached: [a-z]"):
        await read("http://nowhere.invalid/v1")


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://127.0.0.1/", "http://", "http://[::1/", "http://a:b:c/"])
async def test_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(errors.ModelError) as caught:
        await read(url)
    assert isinstance(caught.value, errors.RequestRefused | errors.ModelUnreachable)


@pytest.mark.parametrize("key", ["a\nb", "schlüssel", " padded", "a\x00b"])
async def test_key_that_cannot_be_sent_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(errors.KeyRefused, match="Set SOME_KEY") as caught:
        await read("http://127.0.0.1:1/", headers={"authorization": f"Bearer {key}", "x": key})
    assert key not in str(caught.value)


async def test_untrusted_certificate_is_reported_with_the_variable_to_set() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context) as listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(errors.ModelUnreachable, match="SSL_CERT_FILE"):
            await read(f"https://127.0.0.1:{port}/")


async def test_refusal_has_its_status_reason_and_delay() -> None:
    slow = replay_server.refusal(429, {"error": {"message": f"Slow, {KEY}"}}, retry_after="3")
    error = await read_failure(slow, errors.ModelBusy)
    assert (error.status, error.retry_after, "Slow" in str(error)) == (429, 3.0, True)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (Answer([b"x" * 1_000_000] * 3, 500, {"content-type": "text/plain"}, hang=True), errors.ModelServerError, ""),
        (replay_server.refusal(200, {"error": {"code": "context_length_exceeded"}}), errors.ContextOverflow, ""),
        (replay_server.refusal(200, [1, 2]), errors.ModelServerError, ""),
        (Answer([b"<html>"], headers={"content-type": "text/html"}), errors.ModelServerError, "Check the base URL"),
        (Answer([b"not packed"], headers={"content-encoding": "gzip"}), errors.ModelServerError, ""),
    ],
    ids=["endless", "error", "list", "web page", "broken compression"],
)
async def test_answer_that_is_no_stream_is_an_error(answer: Answer, kind: type[errors.ModelError], words: str) -> None:
    error = await read_failure(answer)
    assert type(error) is kind
    assert words in str(error)


async def test_one_client_makes_concurrent_calls_and_reopens_after_close() -> None:
    client = http.HttpClient(ADVICE, HEADERS)
    async with Server(Answer([replay_server.events("one")])) as server:
        assert await asyncio.gather(*(read_data(client, server.url) for _ in range(40))) == [["one"]] * 40
        await client.close()
        assert await read_data(client, server.url) == ["one"]
        await client.close()


# The connection of a closed event loop warns when it is collected: here, not in a later test.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_client_works_in_another_event_loop() -> None:
    clients = [http.HttpClient(ADVICE, HEADERS)]
    # The server keeps the connection of the first loop open.
    with provider_process.serve(Answer([replay_server.events("one")])) as provider:
        assert [asyncio.run(read_data(clients[0], provider.url)) for _ in range(2)] == [["one"]] * 2
    clients.clear()
    gc.collect()


async def test_proxy_is_used_for_other_hosts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with Server(Answer([STREAM])) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert await read("http://model.invalid/v1") == EVENTS
        assert proxy.asked[0].path == "http://model.invalid/v1"
        assert await read_answer(Answer([STREAM])) == EVENTS
        assert len(proxy.asked) == 1


@pytest.mark.parametrize("proxy", ["nonsense://127.0.0.1:9", "http://[::1"])
async def test_invalid_proxy_is_a_model_error(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(errors.ModelUnreachable, match="proxy"):
        await read("http://model.invalid/v1")
