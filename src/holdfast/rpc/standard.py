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
    """To the end of the block input is empty for everybody else, and what they print goes to standard error."""
    try:
        mine = Kept(os.dup(0), os.dup(1))
    except OSError:
        raise errors.SettingInvalid("Standard input and output have to be open: frames come and go by them.") from None
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        _flushed()
        os.dup2(nothing, 0)
        os.dup2(2 if _is_open(2) else nothing, 1)
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
