"""Secrets of a server are redacted in its texts, other settings only in its errors."""

from __future__ import annotations

import pytest

from holdfast.tools.mcp import content


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKEN", "plain-words"),
        ("apiKey", "plain-words"),
        ("X-Api-Keys", "plain-words"),
        ("Authorization", "Bearer plainwords"),
        ("WHERE", "postgres://me:plain-words@host/db"),
        ("WHAT", "ghp_0123456789abcdefghij"),
    ],
)
def test_value_that_is_named_or_looks_like_a_secret_is_redacted(name: str, value: str) -> None:
    secrets = content.SecretFilter([(name, value)])
    for word in (value, value.rsplit(maxsplit=1)[-1]):
        assert secrets.redact(f"<{word}>") == secrets.redact_all(f"<{word}>") == "<[redacted]>"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PATH_TO_NOTES", "/home/somebody/notes"),
        ("Accept", "application/json"),
        ("PROJECT", "0b5e9f6e-6f1c-4a53-9e53-0123456789ab"),
    ],
)
def test_other_value_is_redacted_in_errors_only(name: str, value: str) -> None:
    secrets = content.SecretFilter([(name, value)])
    assert secrets.redact(f"<{value}>") == f"<{value}>"
    assert secrets.redact_all(f"<{value}>") == "<[redacted]>"


def test_short_values_are_left_and_longer_ones_redacted_first() -> None:
    assert content.SecretFilter([("TOKEN", "on"), ("KEY", "a b c")]).redact_all("on a b c") == "on a b c"
    secrets = content.SecretFilter([("KEY", "password"), ("TOKEN", "password-and-more")])
    assert secrets.redact("password-and-more, password") == "[redacted], [redacted]"
