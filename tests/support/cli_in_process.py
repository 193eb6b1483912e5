"""Run the program within this process, for tests that do not depend on the process."""

from __future__ import annotations

import io
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from unittest import mock

from holdfast.cli import program
from tests.support import cli_process


def run(
    home: Path, *arguments: str | bytes | Path, piped: bytes | None = None, env: Mapping[str, str] | None = None
) -> cli_process.Run:
    """Run it as a shell would: arguments and input may be any bytes."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    given = cli_process.environment(home, env)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, given, clear=True))
        stack.enter_context(mock.patch.object(tempfile, "tempdir", given["TMPDIR"]))  # Python reads TMPDIR only once.
        stdin = stack.enter_context(_stdin(piped))
        argv = ["holdfast", *map(os.fsdecode, arguments)]
        for name, value in (("argv", argv), ("stdin", stdin), ("stdout", out), ("stderr", err)):
            stack.enter_context(mock.patch.object(sys, name, value))
        stack.enter_context(chdir(home))
        code = _run()
    return cli_process.Run(code, _read(out), _read(err))


def _run() -> int:
    kept = list(logging.getLogger().handlers)
    try:
        program.run()
    except SystemExit as left:
        return int(left.code or 0)
    finally:
        for handler in set(logging.getLogger().handlers) - set(kept):
            handler.close()
        logging.getLogger().handlers[:] = kept


@contextmanager
def _stdin(piped: bytes | None) -> Iterator[io.TextIOWrapper]:
    file = open(os.devnull, "rb") if piped is None else tempfile.TemporaryFile()  # noqa: SIM115
    if piped is not None:
        file.write(piped)
        file.seek(0)
    with io.TextIOWrapper(file, encoding="utf-8") as stream:
        yield stream


def _read(stream: io.TextIOWrapper) -> str:
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode("utf-8")
