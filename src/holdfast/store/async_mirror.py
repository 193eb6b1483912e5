"""The awaitable counterparts of SessionDB and its facets, built from the synchronous classes.

Each public method of a synchronous class becomes a coroutine method with the same arguments, result and errors. It runs
on a thread of the store's pool; an append, or a method declared with `write_step.shareable`, joins a group commit
instead, and cancelling its task does not cancel the write. Type checkers read async_mirror.pyi, which
`python -m tests.support.async_stubs` generates.
"""

from __future__ import annotations

import functools
import inspect
from functools import partial

from holdfast import types
from holdfast.store import log, write_step
from holdfast.store.admin import Admin
from holdfast.store.blobs.blobs import Blobs
from holdfast.store.db import SessionDB
from holdfast.store.mail.contacts import Contacts
from holdfast.store.mail.mail import Mail
from holdfast.store.records.memory import Memories
from holdfast.store.records.permissions import PermissionRecords
from holdfast.store.records.processes import ProcessLog


class AsyncMirror:
    """An awaitable view of `target`; `runner` runs its calls."""

    def __init__(self, target, runner):
        self._target, self._runner = target, runner


def _make_awaitable(method):
    @functools.wraps(method)
    async def call(self, *args, **kwargs):
        return await self._runner.run(partial(method, self._target, *args, **kwargs))

    return call


def _make_shared(method):
    prepare = method.prepare

    @functools.wraps(method)
    async def call(self, *args, **kwargs):
        return await self._runner.share(prepare(self._target, *args, **kwargs))

    return call


@functools.wraps(SessionDB.append_messages)
async def _append_messages(self, session_id, messages, **options):
    if messages in ([], ()):
        return await self._runner.run(list)  # raises StoreClosed, if it is
    request = log.AppendRequest(session_id, messages, self._target._clock(), **options)
    return await self._runner.share(write_step.WriteStep("append", request))


@functools.wraps(SessionDB.append_message)
async def _append_message(self, session_id, *, expect_head=False, create=None, lease=None, **message):
    messages, now = [types.NewMessage(**message)], self._target._clock()
    request = log.AppendRequest(session_id, messages, now, expect_head=expect_head, create=create, lease=lease)
    return (await self._runner.share(write_step.WriteStep("append", request)))[0]


def _mirror(target, name, without=(), **own):
    methods = {
        each: _make_shared(method) if hasattr(method, "prepare") else _make_awaitable(method)
        for each, method in inspect.getmembers(target, inspect.isfunction)
        if not each.startswith("_") and each not in without
    }
    special = {"__doc__": f"{target.__name__}, awaited.", "__module__": __name__}
    return type(name, (AsyncMirror,), {**methods, **own, **special})


# AsyncSessionDB closes after the last append.
AsyncSessionBase = _mirror(
    SessionDB, "AsyncSessionBase", {"close"}, append_message=_append_message, append_messages=_append_messages
)
AsyncMail = _mirror(Mail, "AsyncMail")
AsyncContacts = _mirror(Contacts, "AsyncContacts")
AsyncMemories = _mirror(Memories, "AsyncMemories")
AsyncPermissionRecords = _mirror(PermissionRecords, "AsyncPermissionRecords")
AsyncProcessLog = _mirror(ProcessLog, "AsyncProcessLog")
AsyncBlobs = _mirror(Blobs, "AsyncBlobs")
AsyncAdmin = _mirror(Admin, "AsyncAdmin")
