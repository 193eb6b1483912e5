"""Log lines of a program that runs for long: one a line, as text or JSON, and no secret in any of them."""

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
SHORTEST = 6
"""Characters of a secret that is looked for: a shorter one would take ordinary words away."""

_QUERY = re.compile(r"(\b[a-z][a-z0-9+.\-]{1,20}://[^\s\"'?#]+\?)[^\s\"'#]+", re.IGNORECASE)
"""The query of a URL: several providers take the key there, under a name of their own."""

MOST, WITHIN = 100, 10.0
"""Lines of one kind that are written in so many seconds."""


class RedactingFormatter(logging.Formatter):
    """A record as one line. Besides what looks like a secret, those that are known are taken out."""

    def __init__(self, form: LogFormat, known: Iterable[str] = ()) -> None:
        super().__init__()
        self._form = form
        self._known = sorted({each for each in known if len(each) >= SHORTEST}, key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "time": self._time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": self._without(record.getMessage()),
        }
        if left_out := getattr(record, "left_out", 0):
            said["message"] = f"{said['message']} ({left_out:,} more like this were left out before it)"
        if record.exc_info:
            said["error"] = self._without(self.formatException(record.exc_info))
        if self._form == "json":
            return json.dumps(said)
        message = " ".join(str(said["message"]).splitlines())
        line = f"{said['time']} {record.levelname} {record.name}: {message}"
        return f"{line}\n{said['error']}" if "error" in said else line

    def _time(self, record: logging.LogRecord) -> str:
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03}Z"

    def _without(self, text: str) -> str:
        for each in self._known:
            text = text.replace(each, redaction.MARK)
        return redaction.redact(_QUERY.sub(rf"\1{redaction.MARK}", text))


class PrivateFileHandler(logging.FileHandler):
    """A log file that only its owner can read, also where it was there before. Raises SettingInvalid."""

    def __init__(self, path: str) -> None:
        try:
            super().__init__(path, encoding="utf-8")
        except OSError as error:
            raise errors.SettingInvalid(f"The log {path} cannot be written: {error.strerror or error}.") from None

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=_private)


def _private(path: str, flags: int) -> int:
    fd = os.open(path, flags, 0o600)
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077 and found.st_uid == os.geteuid():
        os.fchmod(fd, 0o600)
    return fd


class RateLimitFilter(logging.Filter):
    """Lets so many lines from one place of the program through in a while, and says how many it left out: whatever
    happens a thousand times a second does not fill the disk as well."""

    def __init__(self, most: int = MOST, within: float = WITHIN) -> None:
        super().__init__()
        self._most, self._within = most, within
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        place = (record.pathname, record.lineno)
        began, count = self._seen.get(place, (record.created, 0))
        left_out = 0
        if not 0 <= record.created - began < self._within:
            left_out, began, count = max(0, count - self._most), record.created, 0
        self._seen[place] = (began, count + 1)
        record.left_out = left_out
        return count < self._most


def known_secrets(settings: config.Settings) -> list[str]:
    """The secrets of these settings."""
    return [*settings.keys.values(), *settings.secrets.values()]


@contextmanager
def log_to(stream: TextIO, form: LogFormat, level: str, settings: config.Settings) -> Iterator[None]:
    """Log this process to `stream` and to the log file of the settings until the end of the block.

    `level` is the least that Holdfast's own loggers emit. Libraries log warnings only, unless it is "debug": at info an
    HTTP client logs every URL it requests.
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
