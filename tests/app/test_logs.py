"""Log lines: one a line, and no secret in any."""

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


def test_a_json_line_has_what_programs_look_for() -> None:
    said = json.loads(logs.RedactingFormatter("json").format(record("two\nlines")))
    assert {name: said[name] for name in ("level", "logger", "message")} == {
        "level": "warning",
        "logger": "holdfast.gateway",
        "message": "two\nlines",
    }
    assert said["time"].endswith("Z")


def test_what_somebody_wrote_does_not_begin_a_line_of_its_own() -> None:
    assert "\n" not in logs.RedactingFormatter("text").format(record("from %s", "eve\n2026 ERROR all is lost"))


def test_the_secrets_of_settings_are_known(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(
        config.load({}, files=False), keys={"openai": config.Secret("key-one")}, secrets={"X": config.Secret("key-two")}
    )
    stream, file = io.StringIO(), tmp_path / "own.log"
    before = logging.getLogger().level, list(logging.getLogger().handlers)
    with logs.log_to(stream, "text", "info", msgspec.structs.replace(settings, log=str(file))):
        logging.getLogger("holdfast.test").info("key-one and key-two")
        logging.getLogger("holdfast.test").debug("nothing of this")
        logging.getLogger("uvicorn.error").info("nor of this")
    assert stream.getvalue().endswith("[redacted] and [redacted]\n")
    assert stream.getvalue().count("\n") == 1
    assert file.read_text("utf-8") == stream.getvalue()
    assert (logging.getLogger().level, logging.getLogger().handlers) == before


@pytest.mark.parametrize(("level", "logged"), [("info", False), ("warning", False), ("debug", True)])
def test_libraries_log_requests_only_at_debug_and_without_the_query(level: str, logged: bool) -> None:
    stream = io.StringIO()
    with logs.log_to(stream, "text", level, config.load({}, files=False)):
        logging.getLogger("httpx2").info('HTTP Request: POST %s "200 OK"', "https://me:pw@host/v1?key=plain&x=1")
    expected = 'HTTP Request: POST https://me:[redacted]@host/v1?[redacted] "200 OK"\n'
    assert stream.getvalue().endswith(expected) if logged else stream.getvalue() == ""


def test_a_log_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(config.load({}, files=False), log=str(tmp_path / "no" / "own.log"))
    with (
        pytest.raises(errors.SettingInvalid, match="cannot be written"),
        logs.log_to(io.StringIO(), "text", "info", settings),
    ):
        pass


def test_what_happens_a_thousand_times_is_not_written_a_thousand_times(tmp_path: Path) -> None:
    stream, file = io.StringIO(), tmp_path / "log"
    settings = msgspec.structs.replace(config.load({}, files=False), log=str(file))
    with logs.log_to(stream, "text", "info", settings):
        logger = logging.getLogger("holdfast.gateway")
        for number in range(5 * logs.MAX_RECORDS):
            logger.warning("again: %d", number)
        logger.warning("another")
        later = logger.makeRecord(logger.name, logging.WARNING, __file__, 1, "later", (), None)
        for handler in logging.getLogger().handlers:
            for seldom in [each for each in handler.filters if isinstance(each, logs.RateLimitFilter)]:
                # A while after the flood.
                place = next(iter(seldom._seen))
                later.pathname, later.lineno = place
                later.created += logs.PERIOD_SECONDS
        logger.handle(later)
    for lines in (stream.getvalue().splitlines(), file.read_text().splitlines()):
        assert len([line for line in lines if "again" in line]) == logs.MAX_RECORDS
        assert lines[-2].endswith("another")
        assert lines[-1].endswith(f"later ({4 * logs.MAX_RECORDS:,} earlier records like this were suppressed)")


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
