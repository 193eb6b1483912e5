"""Secrets are removed from a text; similar text stays."""

from __future__ import annotations

import pytest

from holdfast import redaction
from holdfast.model import provider_errors

KEY = "MIIEpAIBAAKCAQEA7bq0lDgkqXy3m1ZrTnq8fYH2"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("use sk-proj-abcdEFGH1234567890abcd now", "use [redacted] now"),
        ("git clone with ghp_" + "a1B2" * 9, "git clone with [redacted]"),
        ("github_pat_11ABCDEFG0123456789_abcdefghij", "[redacted]"),
        ("id AKIAIOSFODNN7EXAMPLE.", "id [redacted]."),
        ("xoxb-123456789012-abcdefGHIJ", "[redacted]"),
        ("AIza" + "Sy0_-abcd" * 4, "[redacted]"),
        ("bot 123456789:AA" + "Hx9_-bcd" * 4 + "e", "bot [redacted]"),
        ("Authorization: Bearer abc123def456ghi789", "Authorization: Bearer [redacted]"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghi_1", "[redacted]"),
        ("DB_PASSWORD=hunter2!", "DB_PASSWORD=[redacted]"),
        ('{"api_key": "9f8e7d6c5b4a", "model": "m"}', '{"api_key": "[redacted]", "model": "m"}'),
        (r"{\"password\": \"abcd1234\"}", r"{\"password\": \"[redacted]\"}"),
        ("postgres://app:s3cr3t@db/orders", "postgres://app:[redacted]@db/orders"),
        ("https://host/cb?token=ab12cd34ef56&x=1", "https://host/cb?token=[redacted]&x=1"),
        ("my password is hunter2, ok", "my password is [redacted], ok"),
        ("wifi password: sunshine", "wifi password: [redacted]"),
        ("the deploy key we use: Zk3vQ9xL2mN8pR5tW7yB1cD4", "the deploy key we use: [redacted]"),
        ("İstanbul PASSWORD=hunter2!", "İstanbul PASSWORD=[redacted]"),
        (
            f"before\n-----BEGIN RSA PRIVATE KEY-----\n{KEY}\n{KEY}\nabc=\n-----END RSA PRIVATE KEY-----\nafter",
            "before\n[redacted]\nafter",
        ),
        (
            rf'"key": "-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\n", "x": 1',
            r'"key": "[redacted]\n", "x": 1',
        ),
        (f"cut off: -----BEGIN EC PRIVATE KEY-----\n{KEY}\n{KEY}", "cut off: [redacted]"),
    ],
)
def test_secret_is_removed_and_the_text_around_it_stays(text: str, left: str) -> None:
    assert redaction.redact(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "commit 3f2a9c81d4e5f60718293a4b5c6d7e8f90123456 is the key one",
        "token 123e4567-e89b-12d3-a456-426614174000 in the queue",
        "the key file is /home/ada/projects/Holdfast2/src/keys/Public1.pem",
        "max_tokens=4096, token limit: 128000, tokens: 12,000 of 200,000",
        "a basic understanding of bearer instruments",
        "password=os.environ['DB_PASSWORD'] and password: required",
        "rows.sort(key=lambda item: item.seq); token = next_token(stream)",
        "https://example.com:8080/path?page=2@home",
        "grep '-----BEGIN RSA PRIVATE KEY-----' in every repository",
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB",
    ],
)
def test_text_that_resembles_a_secret_stays(text: str) -> None:
    assert redaction.redact(text) == text


def test_redaction_is_idempotent() -> None:
    once = redaction.redact("password=hunter2! and sk-abcd1234efgh5678ijkl, Bearer abc123def456ghi")
    assert redaction.redact(once) == once
    assert once.count(redaction.MARK) == 3


def test_provider_errors_are_redacted() -> None:
    assert "s3cr3t" not in provider_errors.redact("cannot reach https://me:s3cr3t@proxy:8080")
    assert "AKIA" not in provider_errors.redact("credential AKIAIOSFODNN7EXAMPLE was refused")
