"""What a server was told in confidence is not told again, and what it needs to make sense is."""

from __future__ import annotations

import pytest

from holdfast.tools.mcp import content


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKEN", "plain-words"),
        ("GITHUB_TOK", "plain-words"),
        ("AWS_ACCESS_KEY_ID", "plain-words"),
        ("apiKey", "plain-words"),
        ("X-Api-Keys", "plain-words"),
        ("Authorization", "Bearer plainwords"),
        ("Cookie", "a=plainwords"),
        ("DB_PASSWORD", "plain-words"),
        ("GITHUB_PAT", "plain-words"),
        ("WHERE", "postgres://me:plain-words@host/db"),
        ("WHAT", "ghp_0123456789abcdefghij"),
    ],
)
def test_what_is_named_or_looks_secret_stands_in_nothing_a_server_says(name: str, value: str) -> None:
    told = content.SecretFilter([(name, value)])
    for word in (value, value.rsplit(maxsplit=1)[-1]):
        assert told.redact(f"<{word}>") == told.redact_all(f"<{word}>") == "<[redacted]>"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOME", "/home/somebody"),
        ("PATH_TO_NOTES", "/home/somebody/notes"),
        ("Accept", "application/json"),
        ("REGION", "eu-central-1"),
        ("AUTHOR", "Somebody Else"),
        ("KEYBOARD", "colemak-dh"),
        ("PROJECT", "0b5e9f6e-6f1c-4a53-9e53-0123456789ab"),
    ],
)
def test_what_results_are_about_stays_in_them_and_out_of_errors(name: str, value: str) -> None:
    told = content.SecretFilter([(name, value)])
    assert told.redact(f"<{value}>") == f"<{value}>"
    assert told.redact_all(f"<{value}>") == "<[redacted]>"


def test_short_values_are_left_for_they_stand_everywhere() -> None:
    assert content.SecretFilter([("TOKEN", "on"), ("KEY", "a b c")]).redact_all("on a b c") == "on a b c"


def test_no_value_is_struck_out_of_the_middle_of_another() -> None:
    told = content.SecretFilter([("KEY", "password"), ("TOKEN", "password-and-more")])
    assert told.redact("password-and-more, password") == "[redacted], [redacted]"
