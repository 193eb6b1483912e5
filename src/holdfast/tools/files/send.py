"""The tool send_file: attach a file of the workspace to the reply that is sent to a chat."""

from __future__ import annotations

import mimetypes
from collections.abc import Awaitable, Callable

from holdfast import errors, types
from holdfast.tools import base, worker_thread
from holdfast.tools.files import images, workspace
from holdfast.tools.permissions import sensitive_paths

NAME = "send_file"
MAX_BYTES = 50_000_000
"""The largest file; a platform may have a lower limit."""

StoreBlob = Callable[[bytes, str], Awaitable[types.Blob]]
"""Stores the content of a file with its media type."""

_SPEC = types.ToolSpec(
    NAME,
    "Send a file of the project to the user: it is attached to your reply in the chat. Call it once for each file.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, relative to the project's folder or absolute."},
        },
        "required": ["path"],
    },
)


def send_file(space: workspace.Workspace, store: StoreBlob) -> base.Tool:
    """Build the tool. The file is a part of the result in the log, so the reply has it after a crash, too."""

    async def run(arguments: base.Arguments) -> types.Content | base.Plan:
        path = space.resolve(arguments["path"])

        async def attach() -> types.Content:
            data = await worker_thread.run_in_thread(lambda _: _read(space, path))
            image, name = images.read(data), path.parts[-1]
            guessed = mimetypes.guess_type(name)[0] or "application/octet-stream"
            blob = await store(data, image.media_type if image is not None else guessed)
            text = f"[{path.name}, {blob.media_type}, {blob.size:,} bytes: attached to your reply.]"
            return [{"type": "text", "text": text}, {"type": "file", "blob": blob.digest, "name": name}]

        if danger := sensitive_paths.secret(path.parts):
            summary = f"Send {errors.quote(path.name, 200)} to the chat."
            act = base.Act(tool=NAME, kind="look", summary=summary, paths=(path.path,), danger=danger)
            return base.Plan(act, attach)
        return await attach()

    return base.Tool(_SPEC, run)


def _read(space: workspace.Workspace, path: workspace.WorkspacePath) -> bytes:
    with space.open_file(path) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise errors.ToolFailed(f"The file has more than {MAX_BYTES:,} bytes, which is the limit.")
    if not data:
        raise errors.ToolFailed("The file is empty; chat platforms do not accept empty files.")
    return data
