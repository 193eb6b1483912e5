"""Changing a part of a file: what is there, and what is to be there instead."""

from __future__ import annotations

import msgspec

from holdfast import errors, types
from holdfast.tools import base, worker_thread
from holdfast.tools.files import editor_buffers, read_cache, text_match, workspace, write

MOST = 50

_ONE = {
    "old_text": {"type": "string", "description": "Text of the file as it is now, long enough to stand there once."},
    "new_text": {"type": "string", "description": "What is to stand there instead."},
    "replace_all": {"type": "boolean", "description": "Replace it everywhere; false when left out."},
}

_SPEC = types.ToolSpec(
    "edit_file",
    "Replace text in a file of the project. `old_text` has to stand there exactly once, without line numbers. Several "
    "changes of one file go into `edits`, done one after the other; either all are done or none.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, from the project's folder or absolute."},
            **_ONE,
            "edits": {
                "type": "array",
                "description": "Several changes, instead of one.",
                "items": {"type": "object", "properties": _ONE, "required": ["old_text", "new_text"]},
            },
        },
        "required": ["path"],
    },
)


def edit_file(
    where: workspace.Workspace, known: read_cache.Reads, editor: editor_buffers.Buffers | None = None
) -> base.Tool:
    """A tool that changes parts of files."""

    async def run(arguments: base.Arguments) -> base.Plan:
        place, edits = where.place(arguments["path"]), asked(arguments)

        def changed(old: write.Text | None, stop: worker_thread.Stop) -> write.Text:
            if old is None:
                raise errors.ToolFailed("There is no such file. write_file makes a new one.")
            text = old.text
            for number, edit in enumerate(edits, 1):
                write.unless(stop)
                text = _edited(text, edit, number if len(edits) > 1 else 0)
            return write.Text(text, old.marked)

        return await write.planned(where, known, "edit_file", place, changed, editor)

    return base.Tool(_SPEC, run)


def asked(arguments: base.Arguments) -> list[text_match.Edit]:
    """The edits of a call: the one it gives, or its list."""
    single = {name: arguments[name] for name in _ONE if name in arguments}
    listed = arguments.get("edits") or []
    if bool(single) == bool(listed):
        raise errors.ToolFailed("Give either `old_text` and `new_text`, or `edits`.")
    if len(listed) > MOST:
        raise errors.ToolFailed(f"At most {MOST} edits go into one call.")
    try:
        return msgspec.convert(listed or [single], list[text_match.Edit])
    except msgspec.ValidationError as error:
        raise errors.ToolFailed(f"The edits are not as they should be: {error}.") from None


def _edited(text: str, edit: text_match.Edit, number: int) -> str:
    try:
        return text_match.replaced(text, edit)
    except errors.ToolFailed as error:
        raise errors.ToolFailed(f"Edit {number}: {error} None was done." if number else str(error)) from None
