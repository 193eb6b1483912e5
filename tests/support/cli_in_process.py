"""The program within this process: everything but a process of its own, for what has to be tried many times."""

from __future__ import annotations

import io
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from holdfast.cli import program
from tests.support import cli_process as running


def run(
    home: Path, *arguments: str | bytes, piped: bytes | None = None, env: Mapping[str, str] | None = None
) -> running.Run:
    """As a shell would run it: words may be any bytes, and so may be what is piped in."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    words = [os.fsdecode(each) for each in arguments]
    with ExitStack() as stack:
        given = running.environment(home, env)
        stack.enter_context(mock.patch.dict(os.environ, given, clear=True))
        stack.enter_context(mock.patch.object(tempfile, "tempdir", given["TMPDIR"]))  # It is looked up once a process.
        for name, value in (("argv", ["holdfast", *words]), ("stdout", out), ("stderr", err)):
            stack.enter_context(mock.patch.object(sys, name, value))
        stack.enter_context(mock.patch.object(sys, "stdin", stack.enter_context(_stdin(piped))))
        stack.enter_context(_at(home))
        code = _code()
    return running.Run(code, _read(out), _read(err))


def _code() -> int:
    kept = list(logging.getLogger().handlers)
    try:
        program.run()
    except SystemExit as left:
        return int(left.code or 0)
    finally:
        logging.getLogger().handlers[:] = kept


@contextmanager
def _stdin(piped: bytes | None) -> Iterator[io.TextIOWrapper]:
    file = open(os.devnull, "rb") if piped is None else tempfile.TemporaryFile()  # noqa: SIM115
    if piped is not None:
        file.write(piped)
        file.seek(0)
    with io.TextIOWrapper(file, encoding="utf-8") as stream:
        yield stream


@contextmanager
def _at(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _read(stream: io.TextIOWrapper) -> str:
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode("utf-8")
