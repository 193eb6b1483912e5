"""The way out: every event that came arrives whole, and whatever goes wrong is one of our errors."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import httpx2
import pytest

from holdfast import errors
from holdfast.model import http, provider_errors
from tests.support import replay_server

ASKED = provider_errors.Advice(model="some/model", key="Set SOME_KEY.", reach="Start it with `serve`.")
KEY = "hunter22-secret"
HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
SECRET_BODY = b'{"messages":[{"content":"what nobody else may read"}]}'


async def heard(url: str, *, headers: dict[str, str] = HEADERS, timeout: float = 5.0) -> list[httpx2.ServerSentEvent]:
    line = http.HttpClient(ASKED, headers, timeout=timeout)
    got: list[httpx2.ServerSentEvent] = []
    try:
        async with aclosing(line.post_stream(url, SECRET_BODY)) as events:
            async for event in events:
                got += [event]
    except errors.ModelError as error:
        error.got = got  # type: ignore[attr-defined]
        raise
    finally:
        await line.close()
    return got


def played(answer: replay_server.Answer) -> list[httpx2.ServerSentEvent]:
    async def run() -> list[httpx2.ServerSentEvent]:
        async with replay_server.Server(answer) as running:
            return await heard(running.url)

    return asyncio.run(run())


def failed(answer: replay_server.Answer, timeout: float = 5.0) -> errors.ModelError:
    async def run() -> errors.ModelError:
        async with replay_server.Server(answer) as running:
            with pytest.raises(errors.ModelError) as caught:
                await heard(running.url, timeout=timeout)
            return caught.value

    error = asyncio.run(run())
    assert KEY not in str(error)
    assert "nobody else" not in str(error)
    return error


def split(stream: bytes, size: int) -> Sequence[bytes]:
    return [stream[at : at + size] for at in range(0, len(stream), size)]


STREAM = "data: Grüße 🌊\n\nevent: named\ndata: one\ndata: two\n\n: keep-alive\n\ndata:three\n\n".encode()
EVENTS = [
    httpx2.ServerSentEvent("message", "Grüße 🌊"),
    httpx2.ServerSentEvent("named", "one\ntwo"),
    httpx2.ServerSentEvent("message", "three"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_events_are_the_same_however_the_bytes_are_split(size: int, end: bytes) -> None:
    assert played(replay_server.Answer(split(STREAM.replace(b"\n", end), size))) == EVENTS


@pytest.mark.parametrize("kind", [None, "text/plain", "text/event-stream; charset=latin-1", "TEXT/EVENT-STREAM"])
def test_stream_is_utf8_whatever_it_is_called(kind: str | None) -> None:
    assert played(replay_server.Answer([STREAM], headers={"content-type": kind} if kind else {})) == EVENTS


def test_large_event_arrives_whole() -> None:
    text = "x" * 3_000_000
    assert played(replay_server.Answer([replay_server.events(text)])) == [httpx2.ServerSentEvent("message", text)]


def test_cut_after_an_event_keeps_what_was_heard() -> None:
    error = failed(replay_server.Answer([replay_server.events("one"), b"data: tw"], cut=True))
    assert isinstance(error, errors.ModelCut)
    assert error.got == [httpx2.ServerSentEvent("message", "one")]  # type: ignore[attr-defined]


def test_cut_before_the_first_event_is_as_if_it_was_never_reached() -> None:
    error = failed(replay_server.Answer([b"data: on"], cut=True))
    assert isinstance(error, errors.ModelUnreachable)
    assert error.retryable


def test_silence_is_an_error_before_and_after_the_first_event() -> None:
    before = failed(replay_server.Answer(hang=True), timeout=0.05)
    assert isinstance(before, errors.ModelUnreachable)
    assert "0.05 seconds" in str(before)
    # On a busy machine the first event may arrive too late: then there is more time.
    after = (
        failed(replay_server.Answer([replay_server.events("one")], hang=True), timeout=each)
        for each in (0.2, 2.0, 20.0)
    )
    assert any(isinstance(error, errors.ModelCut) for error in after)


async def test_nobody_there_says_where_and_why_and_how_to_start_it() -> None:
    async with replay_server.Server(replay_server.Answer()) as running:
        url = running.url
    with pytest.raises(errors.ModelUnreachable) as caught:
        await heard(f"{url.replace('://', '://me:hunter22@')}/v1?key=hunter22")
    assert str(caught.value) == (
        f"some/model ({url.rstrip('/')}) cannot be reached: connection refused. Start it with `serve`."
    )


def test_a_name_nobody_has_is_told_in_the_words_of_the_system() -> None:
    with pytest.raises(errors.ModelUnreachable, match=r"\(https?://nowhere\.invalid\) cannot be reached: [a-z]"):
        asyncio.run(heard("http://nowhere.invalid/v1"))


def test_of_several_addresses_the_first_tells_why() -> None:
    several = OSError("All connection attempts failed")
    several.__cause__ = ExceptionGroup("all", [ConnectionRefusedError(111, "Connect call failed"), OSError(113, "no")])
    failed = httpx2.ConnectError("All connection attempts failed")
    failed.__cause__ = several
    assert http._find_reason(failed) == os.strerror(111).lower()


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://127.0.0.1/", "http://", "http://[::1/", "http://a:b:c/"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(errors.ModelError) as caught:
        asyncio.run(heard(url))
    assert isinstance(caught.value, errors.RequestRefused | errors.ModelUnreachable)


@pytest.mark.parametrize("key", ["a\nb", "schlüssel", " padded", "a\x00b"])
def test_key_that_cannot_be_sent_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(errors.KeyRefused, match="Set SOME_KEY") as caught:
        asyncio.run(heard("http://127.0.0.1:1/", headers={"authorization": f"Bearer {key}", "x": key}))
    assert key not in str(caught.value)


def secured(certificate: Path) -> errors.ModelError:
    """What becomes of a call to a server with this certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def run() -> errors.ModelError:
        async with await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context) as listening:
            port = listening.sockets[0].getsockname()[1]
            with pytest.raises(errors.ModelUnreachable) as caught:
                await heard(f"https://127.0.0.1:{port}/")
            return caught.value

    return asyncio.run(run())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_certificate_nobody_vouches_for_is_told_as_such(tmp_path: Path) -> None:
    file = tmp_path / "both.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*make.split(), "-keyout", file, "-out", tmp_path / "cert.pem"], check=True, capture_output=True)
    file.write_bytes(file.read_bytes() + (tmp_path / "cert.pem").read_bytes())
    assert "SSL_CERT_FILE" in str(secured(file))


def test_certificates_of_the_environment_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    with pytest.raises(errors.ModelUnreachable, match="SSL_CERT_FILE"):
        asyncio.run(heard("https://model.invalid/"))


async def test_server_without_tls_at_a_secure_address_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECT_TIMEOUT", 0.3)  # It never answers: however long one waits, it is the same.
    async with replay_server.Server(replay_server.Answer([STREAM])) as running:
        with pytest.raises(errors.ModelUnreachable):
            await heard(running.url.replace("http:", "https:"))


def test_refusal_has_its_status_its_reason_and_its_wait() -> None:
    error = failed(replay_server.refusal(429, {"error": {"message": f"Slow down, {KEY}"}}, retry_after="3"))
    assert isinstance(error, errors.ModelBusy)
    assert (error.status, error.retry_after) == (429, 3.0)
    assert "Slow down" in str(error)


def test_endless_refusal_is_not_read_to_its_end() -> None:
    error = failed(replay_server.Answer([b"x" * 1_000_000] * 3, 500, {"content-type": "text/plain"}, hang=True))
    assert isinstance(error, errors.ModelServerError)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"error": {"message": "too long", "code": "context_length_exceeded"}}, errors.ContextOverflow),
        ({"error": {"message": "Overloaded", "type": "overloaded_error"}}, errors.ModelBusy),
        ({"choices": []}, errors.ModelServerError),
        ([1, 2], errors.ModelServerError),
    ],
)
def test_json_instead_of_a_stream_is_an_error(body: object, kind: type[errors.ModelError]) -> None:
    assert type(failed(replay_server.refusal(200, body))) is kind


def test_web_page_instead_of_a_stream_points_at_the_address() -> None:
    error = failed(replay_server.Answer([b"<html>Log in</html>"], headers={"content-type": "text/html; charset=utf-8"}))
    assert isinstance(error, errors.ModelServerError)
    assert "Check the base URL" in str(error)


def test_broken_compression_is_malformed() -> None:
    packed = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    assert isinstance(failed(replay_server.Answer([b"not packed at all"], headers=packed)), errors.ModelServerError)


async def test_closing_the_iterator_ends_the_call_at_the_provider() -> None:
    async with replay_server.Server(replay_server.Answer([replay_server.events("one")], hang=True)) as running:
        line = http.HttpClient(ASKED, HEADERS)
        async with aclosing(line.post_stream(running.url, b"{}")) as events:
            assert await anext(events) == httpx2.ServerSentEvent("message", "one")
        async with asyncio.timeout(60):
            await running.left.wait()
        await line.close()


async def test_cancelling_the_reader_ends_the_call_at_the_provider() -> None:
    async with replay_server.Server(replay_server.Answer([replay_server.events("one")], hang=True)) as running:
        line, begun = http.HttpClient(ASKED, HEADERS), asyncio.Event()

        async def read() -> None:
            async with aclosing(line.post_stream(running.url, b"{}")) as events:
                async for _ in events:
                    begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(60):
            await running.left.wait()
        await line.close()


async def test_one_wire_serves_many_calls_at_once() -> None:
    line = http.HttpClient(ASKED, HEADERS)

    async def one(url: str) -> list[str]:
        return [event.data async for event in line.post_stream(url, b"{}")]

    async with replay_server.Server(replay_server.Answer([replay_server.events("one")])) as running:
        assert await asyncio.gather(*(one(running.url) for _ in range(40))) == [["one"]] * 40
        await line.close()
        assert await one(running.url) == ["one"], "it opens anew"
        await line.close()


# The connection of a loop that ended is nobody's any more, and says so when it is collected: here, not in a later test.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_wire_outlives_the_loop_it_was_first_used_in() -> None:
    assert in_two_loops(http.HttpClient(ASKED, HEADERS)) == [["one"], ["one"]]
    gc.collect()


def in_two_loops(line: http.HttpClient) -> list[list[str]]:
    """What is heard in two loops, one after the other, of which none closes its connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        body = replay_server.events("one")
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
        kept: list[socket.socket] = []

        def serve() -> None:
            # The connection of the first loop stays open, as that of a server would that is on another machine.
            for _ in range(2):
                connection, _ = listening.accept()
                kept.append(connection)
                connection.recv(65536)
                connection.sendall(head + body)

        thread = threading.Thread(target=serve)
        thread.start()

        async def one() -> list[str]:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            return [event.data async for event in line.post_stream(url, b"{}")]

        answers = [asyncio.run(one()), asyncio.run(one())]
        thread.join()
        for connection in kept:
            connection.close()
        return answers


def test_this_machine_is_reached_without_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert played(replay_server.Answer([STREAM])) == EVENTS


async def test_others_are_reached_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with replay_server.Server(replay_server.Answer([STREAM])) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert await heard("http://model.invalid/v1") == EVENTS
        assert proxy.asked[0].path == "http://model.invalid/v1"


@pytest.mark.parametrize("proxy", ["nonsense://127.0.0.1:9", "http://[::1"])
def test_proxy_that_is_none_is_our_error(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(errors.ModelUnreachable, match="proxy"):
        asyncio.run(heard("http://model.invalid/v1"))


def test_nothing_but_a_provider_model_loads_the_http_library() -> None:
    code = (
        "import sys; from holdfast.model import base, local_servers, provider_errors, reply_builder, offline;"
        "from holdfast.model.openai import request, stream; assert 'httpx2' not in sys.modules;"
        "from holdfast.model.openai import adapter; assert 'httpx2' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
