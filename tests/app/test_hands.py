"""The tools of the program are given what they need, and no more."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import config
from holdfast.app import hands
from holdfast.gateway import settings as gateways


def test_no_token_that_settings_name_is_in_the_environment_of_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CAT", "DOG", "OTHER", "HOLDFAST_DB"):
        monkeypatch.setenv(name, f"{name}-0123456789abcdef")
    monkeypatch.setenv("PLAIN", "1")
    wanted = gateways.Settings(http=gateways.Http(tokens={"cat": "CAT"}), hooks={"ci": gateways.Hook(secret_env="DOG")})
    found = msgspec.structs.replace(
        config.load({}, files=False),
        gateway=wanted,
        providers={"mine": config.Provider(kind="openai", base_url="http://localhost:1", key_env="OTHER")},
    )
    made = hands.environment(found)()
    assert not {"CAT", "DOG", "OTHER", "HOLDFAST_DB"} & set(made)
    assert made["PLAIN"] == "1"
