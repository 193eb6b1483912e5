"""Logging for processes that run for long: one record per line, as text or JSON, without secrets."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Literal, TextIO

from holdfast import config, errors, redaction

LogFormat = Literal["text", "json"]
MIN_SECRET_LENGTH = 6
"""Shorter secrets are not redacted, because they could be ordinary words."""

_QUERY = re.compile(r"(\b[a-z][a-z0-9+.\-]{1,20}://[^\s\"'?#]+\?)[^\s\"'#]+", re.IGNORECASE)
"""The query of a URL, in which several providers take the API key."""

MAX_RECORDS, PERIOD_SECONDS = 100, 10.0
"""The limit of records from one line of code per period."""


class RedactingFormatter(logging.Formatter):
    """Formats a record as one line, without known secrets and without text that looks like a secret."""

    def __init__(self, form: LogFormat, known: Iterable[str] = ()) -> None:
        super().__init__()
        self._form = form
        self._known = sorted({each for each in known if len(each) >= MIN_SECRET_LENGTH}, key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self._time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": self._redact(record.getMessage()),
        }
        if left_out := getattr(record, "left_out", 0):
            fields["message"] = f"{fields['message']} ({left_out:,} earlier records like this were suppressed)"
        if record.exc_info:
            fields["error"] = self._redact(self.formatException(record.exc_info))
        if self._form == "json":
            return json.dumps(fields)
        message = " ".join(str(fields["message"]).splitlines())
        line = f"{fields['time']} {record.levelname} {record.name}: {message}"
        return f"{line}\n{fields['error']}" if "error" in fields else line

    def _time(self, record: logging.LogRecord) -> str:
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03}Z"

    def _redact(self, text: str) -> str:
        for each in self._known:
            text = text.replace(each, redaction.MARK)
        return redaction.redact(_QUERY.sub(rf"\1{redaction.MARK}", text))


class PrivateFileHandler(logging.FileHandler):
    """A log file that only its owner can read, even if it existed before. Raises SettingInvalid."""

    def __init__(self, path: str) -> None:
        try:
            super().__init__(path, encoding="utf-8")
        except OSError as error:
            raise errors.SettingInvalid(f"The log file {path} cannot be written: {error.strerror or error}.") from None

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=_private)


def _private(path: str, flags: int) -> int:
    fd = os.open(path, flags, 0o600)
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077 and found.st_uid == os.geteuid():
        os.fchmod(fd, 0o600)
    return fd


class RateLimitFilter(logging.Filter):
    """Limits the records from one line of code per period, so that a repeated error does not fill the disk."""

    def __init__(self, limit: int = MAX_RECORDS, period: float = PERIOD_SECONDS) -> None:
        super().__init__()
        self._limit, self._period = limit, period
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        place = (record.pathname, record.lineno)
        began, count = self._seen.get(place, (record.created, 0))
        left_out = 0
        if not 0 <= record.created - began < self._period:
            left_out, began, count = max(0, count - self._limit), record.created, 0
        self._seen[place] = (began, count + 1)
        record.left_out = left_out
        return count < self._limit


def known_secrets(settings: config.Settings) -> list[str]:
    """Return the secrets of the settings."""
    return [*settings.keys.values(), *settings.secrets.values()]


@contextmanager
def log_to(stream: TextIO, form: LogFormat, level: str, settings: config.Settings) -> Iterator[None]:
    """Log this process to `stream` and to the log file of the settings until the end of the block.

    `level` is the minimum level of Holdfast's loggers. Libraries log warnings only, unless it is "debug": at level
    info, an HTTP client logs every URL.
    """
    root, own, wanted = logging.getLogger(), logging.getLogger("holdfast"), logging.getLevelName(level.upper())
    handlers: list[logging.Handler] = [logging.StreamHandler(stream)]
    if settings.log is not None:
        handlers.append(PrivateFileHandler(settings.log))
    # The gateway reports uvicorn's start and end itself.
    server = logging.getLogger("uvicorn")
    before = [(logger, logger.level) for logger in (root, own, server)]
    for handler in handlers:
        handler.setFormatter(RedactingFormatter(form, known_secrets(settings)))
        handler.addFilter(RateLimitFilter())
        root.addHandler(handler)
    own.setLevel(wanted)
    server.setLevel(max(logging.WARNING, wanted))
    root.setLevel(wanted if wanted == logging.DEBUG else max(logging.WARNING, wanted))
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
        handlers[-1].close()
        for logger, level_before in before:
            logger.setLevel(level_before)
