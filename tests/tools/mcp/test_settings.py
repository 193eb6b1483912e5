"""Servers in the settings, and environment variables in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import config, errors
from holdfast.tools.mcp import settings


def load(home: Path, text: str, **environ: str) -> tuple[settings.ServerConfig, ...]:
    (home / config.USER_FILE).write_text(text)
    return config.load({"HOLDFAST_HOME": str(home), **environ}, folder=str(home)).servers


def test_server_is_a_command_or_an_address(tmp_path: Path) -> None:
    text = """
    [mcpServers.files]
    command = "npx"
    args = ["-y", "server-filesystem", "${PLACE}"]
    env = { TOKEN = "${TOKEN}", MODE = "${MODE:-calm}" }
    cwd = "work"
    tools = ["read_file"]
    timeout = 5
    [mcpServers.far]
    url = "https://example.org/mcp"
    headers = { Authorization = "Bearer ${TOKEN}" }
    [mcpServers.off]
    command = "x"
    enabled = false
    """
    files, far = load(tmp_path, text, PLACE="/data", TOKEN="s3cret-value")
    assert (files.name, files.command, files.args) == ("files", "npx", ("-y", "server-filesystem", "/data"))
    assert files.env == {"TOKEN": "s3cret-value", "MODE": "calm"}
    assert files.cwd == str(tmp_path / "work")
    assert files.tools == {"read_file"}
    assert files.timeout == 5
    assert (far.url, far.headers) == ("https://example.org/mcp", {"Authorization": "Bearer s3cret-value"})
    assert far.missing == ()
    (wanted,) = load(tmp_path, '[mcpServers.a]\nurl = "http://x/${WHERE}"\nheaders = { K = "${KEY}${WHERE}" }')
    assert wanted.missing == ("KEY", "WHERE")


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    (wanted,) = load(tmp_path, '[mcpServers.a]\ncommand = "x"\nenv = { K = "${K}" }', K="s3cret-value")
    assert "s3cret-value" not in repr(wanted)
    assert wanted.given == (("K", "s3cret-value"), ("K", "s3cret-value"))
    text = '[mcpServers.a]\nurl = "http://x"\nheaders = { A = "Bearer t0ken-value", B = "${K} x" }'
    (wanted,) = load(tmp_path, text, K="s3cret-value")
    assert wanted.given == (("A", "Bearer t0ken-value"), ("B", "s3cret-value x"), ("K", "s3cret-value"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "either `command` or `url`"),
        ('url = "ftp://x"', "http"),
        ('command = "x"\ntype = "http"', "contradicts"),
        ('command = "x"\ntimeout = 0', "timeout"),
    ],
)
def test_invalid_server_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(errors.SettingInvalid, match=reason) as caught:
        load(tmp_path, f"[mcpServers.a]\n{text}")
    assert "mcpServers" in str(caught.value)
