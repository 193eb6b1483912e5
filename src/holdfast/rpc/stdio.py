"""Standard input and output, kept for frames: whoever else would read or write there does so elsewhere.

A plug-in that prints, or a program that was started with this one's descriptors, would otherwise put words between
frames, or take frames away.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from holdfast import errors


class Kept(NamedTuple):
    """Two descriptors that only their holder knows."""

    reads: int
    writes: int


@contextmanager
def kept() -> Iterator[Kept]:
    """To the end of the block input is empty for everybody else, and what they print goes to standard error.

    Raises SettingInvalid where one of them is closed. Whoever opens files does so within the block.
    """
    # One that was closed when the program began may be another file by now.
    if sys.__stdin__ is None or sys.__stdout__ is None or not (_is_open(0) and _is_open(1)):
        raise errors.SettingInvalid("Standard input and output have to be open: frames come and go by them.")
    # Where standard error is closed, this takes its place, which a copy of the others must not.
    nothing = os.open(os.devnull, os.O_RDWR)
    mine = Kept(os.dup(0), os.dup(1))
    try:
        _flushed()
        os.dup2(nothing, 0)
        os.dup2(2 if sys.__stderr__ is not None else nothing, 1)
        yield mine
    finally:
        # What was printed meanwhile may wait in a buffer, and must not follow the frames.
        _flushed()
        os.dup2(mine.reads, 0)
        os.dup2(mine.writes, 1)
        for each in (*mine, nothing):
            os.close(each)


def _flushed() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
