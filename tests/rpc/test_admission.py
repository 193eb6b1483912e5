"""Who is let in: programs with the token, to a host that is served, and only pages that were named."""

from __future__ import annotations

import pytest

from holdfast.rpc import admission

TOKEN = "a-token-of-some-length"
HERE = admission.AdmissionRules(TOKEN, origins=frozenset({"https://example.org"}))
EVERYWHERE = admission.AdmissionRules(TOKEN, host="0.0.0.0")
BEARER = ("authorization", f"Bearer {TOKEN}")
HOST = ("host", "127.0.0.1:9")


def status(*given: tuple[str, str], path: str = "/", rules: admission.AdmissionRules = HERE) -> int | None:
    headers = dict[str, list[str]]()
    for name, value in given:
        headers.setdefault(name, []).append(value)
    found = admission.check_request(rules, path, headers)
    return found.status if found else None


@pytest.mark.parametrize(
    "given",
    [
        [HOST, BEARER],
        [HOST, ("authorization", f"bearer  {TOKEN} ")],
        [HOST, ("sec-websocket-protocol", f"holdfast.rpc, holdfast.token.{TOKEN}")],
        [HOST, ("sec-websocket-protocol", "holdfast.rpc"), ("sec-websocket-protocol", f"holdfast.token.{TOKEN}")],
        [("host", "localhost"), BEARER],
        [("host", "LOCALHOST.:80"), BEARER],
        [("host", "[::1]:80"), BEARER],
        [("host", "127.9.9.9"), BEARER],
        [HOST, BEARER, ("origin", "https://example.org")],
    ],
)
def test_who_knows_the_token_is_let_in(given: list[tuple[str, str]]) -> None:
    assert status(*given) is None


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        (401, [HOST]),
        (401, [HOST, ("authorization", "")]),
        (401, [HOST, ("authorization", TOKEN)]),
        (401, [HOST, ("authorization", f"Basic {TOKEN}")]),
        (401, [HOST, ("authorization", f"Bearer {TOKEN}x")]),
        (401, [HOST, ("authorization", f"Bearer {TOKEN[:-1]}")]),
        (401, [HOST, ("authorization", "Bearer")]),
        (401, [HOST, ("authorization", "Bearer \xe4\udc80".encode("utf-8", "surrogatepass").decode("latin-1"))]),
        (401, [HOST, ("sec-websocket-protocol", f"holdfast.rpc, {TOKEN}")]),
        (401, [HOST, ("sec-websocket-protocol", "holdfast.token.")]),
        (400, [HOST, BEARER, BEARER]),
        (400, [HOST, HOST, BEARER]),
        (400, [HOST, BEARER, ("origin", "https://example.org"), ("origin", "https://example.org")]),
        (403, [HOST, BEARER, ("origin", "https://example.com")]),
        (403, [HOST, BEARER, ("origin", "null")]),
        (403, [HOST, BEARER, ("origin", "")]),
        (403, [HOST, BEARER, ("origin", "http://127.0.0.1:9")]),
        (421, [BEARER]),
        (421, [("host", ""), BEARER]),
        (421, [("host", "rebound.example.org"), BEARER]),
        (421, [("host", "10.0.0.1"), BEARER]),
        (421, [("host", "localhost:x"), BEARER]),
        (421, [("host", "[::1"), BEARER]),
        (421, [("host", "localhost.example.org"), BEARER]),
    ],
)
def test_everybody_else_is_not(expected: int, given: list[tuple[str, str]]) -> None:
    assert status(*given) == expected


def test_there_is_one_address() -> None:
    assert status(HOST, BEARER, path="/?x=1") is None
    assert status(HOST, BEARER, path="/other") == 404


def test_from_elsewhere_one_comes_by_an_address_and_never_by_a_name_nobody_gave() -> None:
    assert status(("host", "10.0.0.1:80"), BEARER, rules=EVERYWHERE) is None
    assert status(("host", "rebound.example.org"), BEARER, rules=EVERYWHERE) == 421
    named = admission.AdmissionRules(TOKEN, host="box.example.org")
    assert status(("host", "box.example.org:80"), BEARER, rules=named) is None


@pytest.mark.parametrize(
    ("token", "can_be_said"),
    [
        (TOKEN, True),
        ("!~" * 8, True),
        ("x" * 15, False),
        (" " * 20, False),
        ("some words and more", False),
        ("a-token-that-ends\n", False),
        ("one,and-another-one", False),
        ("schlüssel-der-länge", False),
        ("a-token-of-\x7fsome-length", False),
    ],
)
def test_a_token_is_one_that_everybody_can_say(token: str, can_be_said: bool) -> None:
    assert admission.is_valid_token(token) is can_be_said
    if can_be_said:
        rules = admission.AdmissionRules(token)
        assert status(HOST, ("authorization", f"Bearer {token}"), rules=rules) is None
        assert status(HOST, ("sec-websocket-protocol", f"holdfast.rpc, holdfast.token.{token}"), rules=rules) is None


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org",
        "http://localhost:3000",
        "http://127.0.0.1:3000",
        "http://[::1]:3000",
        "https://example.org:80",
        "vscode-webview://1ab-C",
        "chrome-extension://abcdefghijklmnop",
    ],
)
def test_an_origin_is_a_scheme_and_a_host(text: str) -> None:
    assert admission.parse_origin(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "*",
        "example.org",
        "example.org/",
        "https://",
        "https://example.org/",
        "https://example.org/page",
        "https://example.org?x",
        "https://me@example.org",
        "https://*",
        "https://*.example.org",
        "https://example.org:",
        "https://example.org:443",
        "http://example.org:80",
        "https://Example.org",
        "HTTPS://example.org",
        "https://exämple.org",
        "https://example.org https://example.com",
        "https://example.org,https://example.com",
        "https://example.org\n",
    ],
)
def test_what_no_browser_ever_says_is_no_origin(text: str) -> None:
    with pytest.raises(ValueError, match=r"origin|browsers"):
        admission.parse_origin(text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("0", ("127.0.0.1", 0)),
        ("localhost:80", ("localhost", 80)),
        ("[::1]:80", ("::1", 80)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
    ],
)
def test_a_place_is_a_port_and_perhaps_a_host(text: str, place: tuple[str, int]) -> None:
    assert admission.parse_address(text) == place


@pytest.mark.parametrize("text", ["", "x", "-1", "65536", "1²", ":80", "::1:80", "localhost:", "localhost"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"port|host|brackets"):
        admission.parse_address(text)
