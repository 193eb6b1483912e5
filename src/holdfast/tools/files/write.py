"""Changing a file: what would become of it, shown first, and done only if it is still the file that was looked at."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from holdfast import errors, types
from holdfast.tools import base, worker_thread
from holdfast.tools.files import diff, editor_buffers, read_cache, workspace
from holdfast.tools.permissions import sensitive_paths

MAX_BYTES = 10_000_000
CHANGED = "The file was changed by somebody else meanwhile; nothing was written. Read it again."
_BOM = "\ufeff"


class Text(msgspec.Struct, frozen=True):
    """What is in a file: its text, without the mark some files begin with. Bytes that are no text are kept as such."""

    text: str
    marked: bool = False

    def like(self, old: Text) -> Text:
        """With the line ends and the mark of the old, where all of its lines end as on Windows."""
        ends = old.text.count("\n")
        windows = ends and old.text.count("\r\n") == ends
        text = self.text.removeprefix(_BOM)
        return Text(text.replace("\n", "\r\n") if windows else text, old.marked or text != self.text)

    def data(self) -> bytes:
        try:
            return (_BOM * self.marked + self.text).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise errors.ToolFailed("The text holds half a character, and cannot be written.") from None


def read(data: bytes) -> Text:
    text = data.decode("utf-8", "surrogateescape")
    return Text(text.removeprefix(_BOM), text.startswith(_BOM))


class Before(msgspec.Struct, frozen=True):
    """A file as it is before the change."""

    data: bytes
    seen: workspace.Seen | None
    """None: only an editor has it so far."""


Change = Callable[[Text | None, worker_thread.Stop], Text]
"""What is to become of a file; it is given what is in it, or None where there is none. It may take its time, and ends
early with any error where nobody waits for it."""


class Draft(msgspec.Struct, frozen=True):
    """A change, ready to be done."""

    before: Before | None
    data: bytes
    difference: str
    added: int
    gone: int
    new_folders: bool = False


async def planned(
    where: workspace.Workspace,
    known: read_cache.Reads,
    tool: str,
    place: workspace.Place,
    change: Change,
    editor: editor_buffers.Buffers | None = None,
) -> base.Plan:
    """The plan of a change: its difference for people, and what does it."""
    where.writable(place)
    before = await _before(where, place, editor)
    draft = await worker_thread.stoppable(lambda stop: drafted(place, before, change, stop))

    async def go() -> types.Content:
        try:
            if editor is None:
                await worker_thread.stoppable(lambda stop: _done(where, place, draft, stop))
            else:
                await _done_by(editor, where, place, draft)
        finally:
            known.forget(place.path)
        return _said(place, draft)

    return base.Plan(_act(tool, place, draft), go)


async def _before(
    where: workspace.Workspace, place: workspace.Place, editor: editor_buffers.Buffers | None
) -> Before | None:
    """The file as an editor has it, where one has; otherwise as it is on the disk."""
    found = await worker_thread.stoppable(lambda _: present(where, place))
    if editor is None or (found is not None and not editor_buffers.suits(found.data)):
        return found
    text = await editor_buffers.held(editor, where, place)
    return found if text is None else Before(text, found.seen if found else None)


def drafted(place: workspace.Place, before: Before | None, change: Change, stop: worker_thread.Stop) -> Draft:
    """What the change comes to, for the file as it is; ToolFailed where nobody waits for it any more."""
    if before is not None and before.seen is not None and not before.seen.mode & 0o222:
        raise errors.ToolFailed("The file is read-only.")
    old = None if before is None else _text(before.data)
    unless(stop)
    new = change(old, stop)
    unless(stop)
    data = new.data()
    if before is not None and data == before.data:
        raise errors.ToolFailed("Nothing would change: the file is like that already.")
    if len(data) > MAX_BYTES:
        raise errors.ToolFailed(f"That makes {len(data):,} bytes; at most {MAX_BYTES:,} are written.")
    difference = diff.unified(old.text if old else "", new.text)
    return Draft(before, data, *difference, not os.path.isdir(os.path.dirname(place.path)))


def unless(stop: worker_thread.Stop) -> None:
    """Go no further where nobody waits."""
    if stop():
        raise errors.ToolFailed("It was stopped; nothing was written.")


def present(where: workspace.Workspace, place: workspace.Place) -> Before | None:
    """The file with all that is in it; None where there is none, nor anything else of that name."""
    if not os.path.lexists(place.path):
        return None
    with where.reading(place) as file:
        found = os.fstat(file.fileno())
        if found.st_size > MAX_BYTES:
            raise errors.ToolFailed(f"The file has {found.st_size:,} bytes; up to {MAX_BYTES:,} can be changed.")
        return Before(file.read(MAX_BYTES + 1), workspace.seen(found))


def _text(data: bytes) -> Text:
    if b"\0" in data[:8192]:
        raise errors.ToolFailed("That is not a text file.")
    return read(data)


def _done(where: workspace.Workspace, place: workspace.Place, draft: Draft, stop: worker_thread.Stop) -> None:
    """Do it, if the file is still what the plan saw: a permission was given for that, and for nothing else."""
    now = present(where, place)
    if now != draft.before:
        raise errors.ToolFailed(CHANGED)
    unless(stop)
    where.write(place, draft.data, None if now is None else now.seen)


async def _done_by(
    editor: editor_buffers.Buffers, where: workspace.Workspace, place: workspace.Place, draft: Draft
) -> None:
    """The same by an editor, where it takes it. That it saved meanwhile what it had is no change."""
    now = await _before(where, place, editor)
    if (now and now.data) != (draft.before and draft.before.data):
        raise errors.ToolFailed(CHANGED)
    if not await editor_buffers.handed(editor, where, place, draft.data):
        seen = now.seen if now else None
        await worker_thread.stoppable(lambda _: where.write(place, draft.data, seen))


def _act(tool: str, place: workspace.Place, draft: Draft) -> base.Act:
    what = "Write the new file" if draft.before is None else "Change"
    folders = ", and the folders it needs" if draft.new_folders else ""
    return base.Act(
        tool=tool,
        kind="change",
        summary=f"{what} {errors.shown(place.name, 200)}{folders} (+{draft.added} -{draft.gone} lines).",
        detail=draft.difference,
        paths=(place.path,),
        danger=sensitive_paths.steering(place.parts)
        or sensitive_paths.repository(place.parts, lambda path: os.path.lexists(os.path.join(place.root, path))),
    )


def _said(place: workspace.Place, draft: Draft) -> str:
    done = "Written" if draft.before is None else "Changed"
    shown = draft.difference if len(draft.difference) <= 4_000 else ""
    return f"{done}: {place.name} (+{draft.added} -{draft.gone} lines)." + (
        f"\n{shown}" if shown and draft.before else ""
    )
