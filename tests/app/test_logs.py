"""Log records: one line each, limited, and without secrets."""

from __future__ import annotations

import io
import json
import logging
import os
import stat
from pathlib import Path

import msgspec
import pytest

from holdfast import config, errors
from holdfast.app import logs

OWN = "correct horse battery staple"


def record(message: str, *given: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, None) if error else None
    return logging.LogRecord("holdfast.gateway", logging.WARNING, "", 0, message, given, info)


@pytest.fixture
def logged(tmp_path: Path) -> config.Settings:
    """Settings with a log file."""
    return msgspec.structs.replace(config.load({}, files=False), log=str(tmp_path / "own.log"))


def test_record_is_one_line_with_its_fields() -> None:
    said = json.loads(logs.RedactingFormatter("json").format(record("two\nlines")))
    assert (said["level"], said["logger"], said["message"]) == ("warning", "holdfast.gateway", "two\nlines")
    assert said["time"].endswith("Z")
    assert "\n" not in logs.RedactingFormatter("text").format(record("from %s", "eve\n2026 ERROR all is lost"))


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    ("message", "given"),
    [
        ("the token %s was refused", (OWN,)),
        (f"it was {OWN}!", ()),
        ("Authorization: Bearer abcdefghijkl0123456789", ()),
        ("postgresql://me:abcdefghijkl0123456789@host/db", ()),
    ],
)
def test_no_secret_is_logged(form: logs.LogFormat, message: str, given: tuple[object, ...]) -> None:
    line = logs.RedactingFormatter(form, [OWN, "is"]).format(record(message, *given, error=ValueError(f"not {OWN}")))
    assert OWN not in line
    assert "abcdefghijkl0123456789" not in line
    assert "[redacted]" in line
    assert "ValueError" in line


def test_secrets_of_the_settings_are_redacted(logged: config.Settings, tmp_path: Path) -> None:
    stream = io.StringIO()
    secrets = {"keys": {"openai": config.Secret("key-one")}, "secrets": {"X": config.Secret("key-two")}}
    before = logging.getLogger().level, list(logging.getLogger().handlers)
    with logs.log_to(stream, "text", "info", msgspec.structs.replace(logged, **secrets)):
        logging.getLogger("holdfast.test").info("key-one and key-two")
        logging.getLogger("holdfast.test").debug("nothing of this")
        logging.getLogger("uvicorn.error").info("nor of this")
    assert stream.getvalue().endswith("[redacted] and [redacted]\n")
    assert stream.getvalue().count("\n") == 1
    assert (tmp_path / "own.log").read_text("utf-8") == stream.getvalue()
    assert (logging.getLogger().level, logging.getLogger().handlers) == before
    missing = msgspec.structs.replace(logged, log=str(tmp_path / "no" / "own.log"))
    with pytest.raises(errors.SettingInvalid, match="cannot be written"):
        logs.log_to(stream, "text", "info", missing).__enter__()


@pytest.mark.parametrize(("level", "logged"), [("info", False), ("warning", False), ("debug", True)])
def test_libraries_log_requests_only_at_debug_and_without_the_query(level: str, logged: bool) -> None:
    stream = io.StringIO()
    with logs.log_to(stream, "text", level, config.load({}, files=False)):
        logging.getLogger("httpx2").info('HTTP Request: POST %s "200 OK"', "https://me:pw@host/v1?key=plain&x=1")
    expected = 'HTTP Request: POST https://me:[redacted]@host/v1?[redacted] "200 OK"\n'
    assert stream.getvalue().endswith(expected) if logged else stream.getvalue() == ""


def test_repeated_records_are_limited(logged: config.Settings, tmp_path: Path) -> None:
    stream = io.StringIO()
    with logs.log_to(stream, "text", "info", logged):
        logger = logging.getLogger("holdfast.gateway")

        def repeated(seconds: float = 0.0) -> logging.LogRecord:
            made = logger.makeRecord(logger.name, logging.WARNING, __file__, 1, "again", (), None)
            made.created += seconds
            return made

        for _ in range(5 * logs.MAX_RECORDS):
            logger.handle(repeated())
        logger.warning("another")
        logger.handle(repeated(logs.PERIOD_SECONDS))
    for lines in (stream.getvalue().splitlines(), (tmp_path / "own.log").read_text().splitlines()):
        assert len([line for line in lines if line.endswith("again")]) == logs.MAX_RECORDS
        assert lines[-2].endswith("another")
        assert lines[-1].endswith(f"again ({4 * logs.MAX_RECORDS:,} earlier records like this were suppressed)")


def test_log_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    fresh, wide = tmp_path / "fresh.log", tmp_path / "wide.log"
    wide.write_text("before\n", encoding="utf-8")
    wide.chmod(0o664)
    before = os.umask(0)
    try:
        for path in (fresh, wide):
            logs.PrivateFileHandler(str(path)).close()
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (fresh, wide)] == [0o600, 0o600]
    assert wide.read_text(encoding="utf-8") == "before\n"
