"""Admission of connections: clients with the token, to a host that is served, from origins that were named."""

from __future__ import annotations

import pytest

from holdfast.rpc import admission

TOKEN = "a-token-of-some-length"
RULES = admission.AdmissionRules(TOKEN, origins=frozenset({"https://example.org"}))
EVERY_HOST = admission.AdmissionRules(TOKEN, host="0.0.0.0")
NAMED_HOST = admission.AdmissionRules(TOKEN, host="box.example.org")
BEARER = ("authorization", f"Bearer {TOKEN}")
HOST = ("host", "127.0.0.1:9")
ORIGIN = ("origin", "https://example.org")


def check(*given: tuple[str, str], path: str = "/", rules: admission.AdmissionRules = RULES) -> int | None:
    headers = dict[str, list[str]]()
    for name, value in given:
        headers.setdefault(name, []).append(value)
    found = admission.check_request(rules, path, headers)
    return found.status if found else None


@pytest.mark.parametrize(
    ("status", "given"),
    [
        (None, [HOST, BEARER]),
        (None, [HOST, ("authorization", f"bearer  {TOKEN} ")]),
        (None, [HOST, ("sec-websocket-protocol", f"holdfast.rpc, holdfast.token.{TOKEN}")]),
        (None, [("host", "LOCALHOST.:80"), BEARER]),
        (None, [("host", "[::1]:80"), BEARER]),
        (None, [HOST, BEARER, ORIGIN]),
        (401, [HOST]),
        (401, [HOST, ("authorization", f"Basic {TOKEN}")]),
        (401, [HOST, ("authorization", f"Bearer {TOKEN[:-1]}")]),
        (401, [HOST, ("authorization", "Bearer \xe4\udc80".encode("utf-8", "surrogatepass").decode("latin-1"))]),
        (401, [HOST, ("sec-websocket-protocol", f"holdfast.rpc, {TOKEN}")]),
        (400, [HOST, BEARER, BEARER]),
        (400, [HOST, HOST, BEARER]),
        (400, [HOST, BEARER, ORIGIN, ORIGIN]),
        (403, [HOST, BEARER, ("origin", "https://example.com")]),
        (403, [HOST, BEARER, ("origin", "http://127.0.0.1:9")]),
        (421, [BEARER]),
        (421, [("host", "rebound.example.org"), BEARER]),
        (421, [("host", "[::1"), BEARER]),
        (421, [("host", "localhost.example.org"), BEARER]),
    ],
)
def test_request_is_admitted_or_refused(status: int | None, given: list[tuple[str, str]]) -> None:
    assert check(*given) == status


@pytest.mark.parametrize(
    ("rules", "host", "path", "status"),
    [
        (RULES, "localhost", "/other", 404),
        (EVERY_HOST, "10.0.0.1:80", "/", None),
        (EVERY_HOST, "rebound.example.org", "/", 421),
        (NAMED_HOST, "box.example.org:80", "/", None),
    ],
)
def test_path_and_host_are_checked(rules: admission.AdmissionRules, host: str, path: str, status: int | None) -> None:
    assert check(("host", host), BEARER, path=path, rules=rules) == status


INVALID_TOKENS = ["x" * 15, " " * 20, "a-token-that-ends\n", "one,and-another-one", "schlüssel-der-länge"]


@pytest.mark.parametrize("token", [*INVALID_TOKENS, "a-token-of-\x7fsome-length"])
def test_token_that_no_header_can_carry_is_invalid(token: str) -> None:
    assert not admission.is_valid_token(token)
    assert admission.is_valid_token("!~" * 8)


ORIGINS = ["https://example.org", "http://127.0.0.1:3000", "http://[::1]:3000", "https://example.org:80"]
ORIGINS += ["vscode-webview://1ab-C"]
NO_ORIGINS = ["", "null", "*", "example.org", "example.org/", "https://", "https://example.org/", "https://*"]
NO_ORIGINS += ["https://me@example.org", "https://example.org:", "https://example.org:443", "https://Example.org"]
NO_ORIGINS += ["https://exämple.org", "https://a.org,https://b.org", "https://example.org\n"]


@pytest.mark.parametrize("text", ORIGINS)
def test_origin_is_a_scheme_and_a_host(text: str) -> None:
    assert admission.parse_origin(text) == text


@pytest.mark.parametrize("text", NO_ORIGINS)
def test_text_that_no_browser_sends_is_no_origin(text: str) -> None:
    with pytest.raises(ValueError, match=r"origin|browsers"):
        admission.parse_origin(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0", ("127.0.0.1", 0)),
        ("localhost:80", ("localhost", 80)),
        ("[::1]:80", ("::1", 80)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
    ],
)
def test_address_is_a_port_with_an_optional_host(text: str, address: tuple[str, int]) -> None:
    assert admission.parse_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "-1", "65536", "1²", ":80", "::1:80", "localhost:", "localhost"])
def test_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"port|host|brackets"):
        admission.parse_address(text)
