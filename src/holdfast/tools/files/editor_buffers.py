"""Files as an editor has them open, with changes that are not saved yet: it is asked before the disk is.

An editor gives and takes text, whole files of it, and no larger than fits into one message. Everything else, pictures
and what is no UTF-8 among it, is read and written by our own hands. Where a file may lie and what it may be is looked
at here first, whoever opens it then.
"""

from __future__ import annotations

import os
from typing import Protocol

import msgspec

from holdfast import errors
from holdfast.tools import worker_thread
from holdfast.tools.files import images, workspace

LARGEST = 2_000_000
"""Bytes of a file an editor is asked for. As JSON it may take six times as much."""
BEGINNING = 8_192


class Buffers(Protocol):
    """An editor. Who asks has made sure that the place is inside, and no link."""

    async def read(self, place: workspace.Place, there: bool) -> str | None:
        """All that is in a file. `there`: the disk has it. None: the disk is to be asked.

        ToolFailed where the editor says that it is not to be had: the disk is no way around that.
        """
        ...

    async def write(self, place: workspace.Place, text: str) -> bool:
        """Have it written; False: nothing was done, and the disk is to be written. ToolFailed where it will not be."""
        ...


async def held(buffers: Buffers | None, where: workspace.Workspace, place: workspace.Place) -> bytes | None:
    """What the editor has of a text file; None: it has nothing to say of it."""
    if buffers is None:
        return None
    there = await worker_thread.stoppable(lambda _: _there(where, place))
    if there is None:
        return None
    text = await buffers.read(place, there)
    try:
        return None if text is None else text.encode()
    except UnicodeEncodeError:
        raise errors.ToolFailed("The text holds half a character, and cannot be read.") from None


async def handed(buffers: Buffers | None, where: workspace.Workspace, place: workspace.Place, data: bytes) -> bool:
    """Whether an editor wrote the file."""
    text = _text(data)
    if buffers is None or text is None or len(data) > LARGEST:
        return False
    await worker_thread.stoppable(lambda _: _prepared(where, place))
    return await buffers.write(place, text)


def suits(data: bytes) -> bool:
    """Whether an editor has the same in it as the disk, but for what is not saved."""
    return len(data) <= LARGEST and _text(data) is not None


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _there(where: workspace.Workspace, place: workspace.Place) -> bool | None:
    """Whether the disk has it; None where it is nothing for an editor."""
    if not os.path.lexists(place.path):
        return False
    with where.reading(place) as file:
        beginning = file.read(BEGINNING)
        fits = os.fstat(file.fileno()).st_size <= LARGEST
        return True if fits and b"\0" not in beginning and images.kind(beginning) is None else None


def _prepared(where: workspace.Workspace, place: workspace.Place) -> None:
    """The folders a new file needs: editors differ in whether they make them. None of them may be a link by now."""
    with where.folder(msgspec.structs.replace(place, parts=place.parts[:-1]), make=True):
        pass
