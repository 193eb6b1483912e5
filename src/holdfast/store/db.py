"""SessionDB: the public API of the store.

A method validates its arguments and runs a step of another module, such as `log.append`, in one transaction of the
driver; a method that creates a session reads it in a second one. Methods take any session id of a conversation,
however old; they are short, synchronous and safe from any thread and any number of processes. `AsyncSessionDB` has
the same methods as coroutines. Leases, search, usage, pins and titles are mixins in the modules of their steps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from holdfast import errors, installation, types
from holdfast.store import (
    admin,
    compactions,
    conversation_row,
    deletion,
    leases,
    log,
    sessions,
    titles,
    usage,
    validation,
    visibility,
    write_step,
)
from holdfast.store import branches as branching
from holdfast.store.blobs import blobs
from holdfast.store.driver import DURABILITY, Driver, SchemaPlan, Tx, hide_password, is_postgres
from holdfast.store.mail import contacts, mail
from holdfast.store.records import memory, permissions, processes
from holdfast.store.search import search
from holdfast.store.sqlite import driver as sqlite_driver


class SessionDB(
    leases.LeaseMixin,
    search.SearchMixin,
    usage.UsageMixin,
    visibility.PinMixin,
    titles.TitleMixin,
):
    """Conversations that cannot fork, in a SQLite file (or `:memory:`), or in PostgreSQL (`postgresql://…`).

    `clock` returns Unix seconds for timestamps and leases; by default leases use the monotonic clock of the machine.
    `durability` is "power-loss" (every acknowledged message survives one) or "process-crash". `write_timeout` is how
    long a write waits for other writers before StoreBusy, and how long an unresponsive server is tried before
    StoreUnreachable; docs/guides/postgresql.md lists the limits of every call. `create=False` raises StoreUnusable if
    the PostgreSQL schema contains no store.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        clock: Callable[[], float] | None = None,
        durability: str = "power-loss",
        write_timeout: float = 10.0,
        create: bool = True,
    ) -> None:
        self._clock = clock or time.time
        self.lease_failures = leases.LeaseFailures()
        self.driver: Driver = open_driver(target, clock, durability, write_timeout, create)
        self.mail = mail.Mail(self.driver, self._clock)
        self.contacts = contacts.Contacts(self.driver, self._clock)
        self.memory = memory.Memories(self.driver, self._clock)
        self.permissions = permissions.PermissionRecords(self.driver, self._clock)
        self.processes = processes.ProcessLog(self.driver, self._clock)
        self.blobs = blobs.Blobs(self.driver, self._clock)
        self.searcher = search.Searcher(self.driver)
        self.admin = admin.Admin(self.driver, self._clock, self.blobs, self.searcher)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The file or server of the store, without a password."""
        return self.driver.path

    def close(self) -> None:
        self.searcher.close()
        self.driver.close()

    # --- sessions ------------------------------------------------------------------------------------

    def create_session(
        self,
        session_id: str | None = None,
        *,
        source: str,
        model: str | None = None,
        parent_session_id: str | None = None,
        title: str | None = None,
        owner: str = "",
        folder: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> types.Session:
        """Create a conversation, or the continuation of a parent that was ended by 'compression'.

        A continuation begins with an empty context; a second one is refused with ForkRefused, which names the first.
        With any other parent, the new conversation only records it. The same call again returns the same session.
        """
        now = self._clock()
        new = conversation_row.NewId(session_id, now)
        parent_id = validation.check_optional_id(parent_session_id, "parent_session_id")
        values = sessions.normalize(
            types.NewConversation(
                source=source, model=model, title=title, owner=owner, folder=folder, metadata=metadata
            )
        )
        return self._session(
            self.driver.write("create", lambda tx: branching.create(tx, new.resolve(tx), parent_id, values, now))
        )

    def get_session(self, session_id: str) -> types.Session | None:
        return self.driver.read(lambda tx: sessions.get(tx, session_id))

    def conversation(self, session_id: str) -> types.Conversation:
        """Return the state of the conversation of this session."""
        return self.driver.read(lambda tx: sessions.get_conversation(tx, conversation_row.read(tx, session_id)))

    def head(self, session_id: str) -> types.Session:
        """Return the newest session of the conversation, which is live unless the conversation has ended."""
        return self.driver.read(lambda tx: sessions.head(tx, session_id))

    def sessions(self, session_id: str) -> list[types.Session]:
        """Return every session of the conversation, first to last."""
        rows = self.driver.read(lambda tx: conversation_row.query(tx, "sessions_of", session_id))
        return [sessions.from_row(row) for row in rows]

    def continuations(self, session_id: str) -> list[types.Session]:
        """Return the continuation of this session, or nothing. A session has at most one."""
        return self.driver.read(lambda tx: sessions.continuations(tx, session_id))

    def branches(self, session_id: str, *, reading: bool = False) -> list[str]:
        """Return the ids of the conversations that branched off; with `reading`, only those that read this log."""
        name = "branches_reading" if reading else "branches_of"
        return [row[0] for row in self.driver.read(lambda tx: conversation_row.query(tx, name, session_id))]

    def list_sessions(
        self,
        *,
        owner: str | None = None,
        source: str | None = None,
        live: bool | None = None,
        folder: str | None = None,
        every: bool = False,
        limit: int = 50,
        skip: int = 0,
    ) -> list[types.Session]:
        """Return the heads of conversations, most recently active first; with `every`, all their sessions.

        With `folder`, conversations of this folder and those without a folder.
        """
        validation.check(validation.WholeNumber, limit=limit, skip=skip)
        validation.check_filters(owner=owner, source=source)
        validation.check(validation.OptionalFlag, live=live, every=every)
        folder = titles.clean_folder_or_none(folder)
        return self.driver.read(
            lambda tx: sessions.list_matching(
                tx, limit, skip, owner=owner, source=source, live=live, folder=folder, every=every
            )
        )

    def resolve(self, text: str, *, owner: str | None = None, near: bool = False) -> types.Session:
        """Find the head of a conversation by an id, a unique prefix of one, a title, or `last`.

        With `near`, titles match case-insensitively and by a unique part; do not use it to choose what to delete.
        Raises Ambiguous with the candidates when several conversations match.
        """
        if not isinstance(text, str) or not text.isprintable() or not text.strip():
            raise validation.invalid("text", "an id, the beginning of one, a title, or `last`", text)
        validation.check_filters(owner=owner)
        return self.driver.read(lambda tx: sessions.resolve(tx, text, owner, near))

    def end_session(self, session_id: str, end_reason: str) -> bool:
        """End this session if it is the live head, and return whether it was. The first end wins."""
        reason, now = validation.check_text(end_reason, "end_reason", sessions.MAX_REASON), self._clock()
        return self.driver.write("end", lambda tx: sessions.end(tx, session_id, reason, now, whole=False))

    def end_conversation(self, session_id: str, end_reason: str) -> bool:
        """End the head of the conversation of this session, and return whether it was live."""
        reason, now = validation.check_text(end_reason, "end_reason", sessions.MAX_REASON), self._clock()
        return self.driver.write("end", lambda tx: sessions.end(tx, session_id, reason, now, whole=True))

    def resume(self, session_id: str) -> types.Session:
        """Return the live head; an ended conversation gets a continuation, the same one for concurrent calls."""
        now = self._clock()
        return self._session(self.driver.write("resume", lambda tx: sessions.resume(tx, session_id, now)))

    def branch(
        self,
        session_id: str,
        at_seq: int | None = None,
        *,
        branch_id: str | None = None,
        title: str | None = None,
        folder: str | None = None,
    ) -> types.Session:
        """Create a conversation that shares the messages of this one up to at_seq (default: all).

        Its folder is this one's, unless another is given.
        """
        validation.check(validation.OptionalNumber, at_seq=at_seq)
        now = self._clock()
        new = conversation_row.NewId(branch_id, now)
        title = titles.clean(title) if title is not None else None
        folder = titles.clean_folder_or_none(folder)
        return self._session(
            self.driver.write(
                "branch", lambda tx: branching.branch(tx, session_id, new.resolve(tx), at_seq, title, folder, now)
            )
        )

    # --- the log -------------------------------------------------------------------------------------

    def append_message(
        self,
        session_id: str | None,
        *,
        role: types.Role,
        content: types.Content = "",
        uid: str | None = None,
        tool_calls: Sequence[types.ToolCall | Mapping[str, Any]] = (),
        tool_call_id: str | None = None,
        at: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        expect_head: bool = False,
        create: types.NewConversation | None = None,
        lease: types.Lease | None = None,
    ) -> types.Receipt:
        """Append one message to the conversation of this session; when this returns, it is stored.

        It is appended to the current head; with expect_head, Superseded names the head if that is another session.
        Repeating a uid in a conversation is harmless. An ended conversation is resumed. With `create`, an unknown id
        becomes a new conversation with this message and its route. Without an id one is generated; a caller that may
        repeat the call passes an id or a route. `metadata` is never sent to a model and never changes.
        """
        message = types.NewMessage(
            role=role,
            content=content,
            uid=uid,
            tool_calls=tool_calls,
            tool_call_id=tool_call_id,
            at=at,
            metadata=metadata,
        )
        receipts = self.append_messages(session_id, [message], expect_head=expect_head, create=create, lease=lease)
        return receipts[0]

    def append_messages(
        self,
        session_id: str | None,
        messages: Sequence[types.NewMessage | Mapping[str, Any]],
        *,
        expect_head: bool = False,
        create: types.NewConversation | None = None,
        lease: types.Lease | None = None,
    ) -> list[types.Receipt]:
        """Append a batch of messages in one transaction, in the order given."""
        if messages in ([], ()):
            return []
        request = log.AppendRequest(
            session_id, messages, self._clock(), expect_head=expect_head, create=create, lease=lease
        )
        return self.driver.write("append", request)

    def begin_conversation(
        self, session_id: str, message: types.NewMessage, create: types.NewConversation, ttl: float = leases.LEASE_TTL
    ) -> tuple[types.Receipt, types.Lease]:
        """Create a conversation with its first message and take its `turn` lease, in one transaction.

        Raises IdTaken if another holder has begun it: then acquire the lease and append.
        """
        validation.check(validation.LeaseTtl, ttl=ttl)
        request = log.AppendRequest(session_id, [message], self._clock(), create=create)
        holder = leases.current_holder(None)

        def begin(tx: Tx) -> tuple[types.Receipt, types.Lease]:
            (receipt,) = log.append(tx, request)
            if not request.created and not receipt.duplicate:
                raise errors.IdTaken(request.session_id)  # Also rolls the message back.
            return receipt, leases.acquire(tx, request.session_id, "turn", holder, ttl)

        return write_step.execute(self.driver, write_step.WriteStep("append", begin))

    def context(self, session_id: str, upto: int | None = None) -> types.Context:
        """Return the context of the model: pinned messages, the summary, and all messages after the cut."""
        validation.check(validation.OptionalNumber, upto=upto)
        return self.driver.read(lambda tx: log.context(tx, session_id, upto))

    def transcript(self, session_id: str, after: int = 0, upto: int | None = None) -> list[types.Message]:
        """Return the messages of the conversation, or those with after < seq <= upto."""
        validation.check(validation.WholeNumber, after=after)
        validation.check(validation.OptionalNumber, upto=upto)
        return self.driver.read(lambda tx: log.transcript(tx, session_id, after, upto))

    def find_seq(self, session_id: str, uid: str) -> int | None:
        """Return the seq of the message with this uid, or None if the conversation has none."""
        validation.check_id(uid, "uid")
        rows = self.driver.read(lambda tx: conversation_row.query(tx, "message_by_uid", session_id, uid=uid))
        return int(rows[0][0]) if rows else None

    def hide(self, session_id: str, from_seq: int, to_seq: int | None = None) -> types.Hide:
        """Hide a range of messages (default: to the last) from the context. Nothing is deleted."""
        validation.check(validation.WholeNumber, from_seq=from_seq)
        validation.check(validation.OptionalNumber, to_seq=to_seq)
        return self.driver.write("hide", lambda tx: visibility.hide(tx, session_id, from_seq, to_seq))

    def show(self, session_id: str, hide_epoch: int | None = None) -> types.Hide:
        """Show the messages of one hide again (default: the newest in force)."""
        validation.check(validation.OptionalNumber, hide_epoch=hide_epoch)
        return self.driver.write("show", lambda tx: visibility.show(tx, session_id, hide_epoch))

    def hides(self, session_id: str) -> list[types.Hide]:
        return self.driver.read(lambda tx: visibility.list_hides(tx, conversation_row.read(tx, session_id).key))

    def redact(self, session_id: str, seq: int) -> None:
        """Remove the text of a message for good, and every summary that may contain it."""
        validation.check(validation.WholeNumber, seq=seq)
        now = self._clock()
        key = self.driver.write("redact", lambda tx: deletion.redact(tx, session_id, seq, now))
        self.searcher.remove(key)

    def delete_conversation(self, session_id: str) -> None:
        """Remove a conversation for good. HasBranches lists the conversations that still read from it."""
        now = self._clock()
        key = self.driver.write("delete", lambda tx: deletion.delete(tx, session_id, now))
        self.searcher.remove(key)

    # --- compactions ---------------------------------------------------------------------------------

    def commit_compaction(
        self,
        work: types.Lease | types.Snapshot,
        *,
        summary: str,
        cut_seq: int,
        pinned: Sequence[int] = (),
        seen_seq: int | None = None,
        child_id: str | None = None,
        ledger: Mapping[str, Any] | None = None,
        model: str | None = None,
        keep_lease: bool = False,
    ) -> types.Session:
        """Replace all messages up to cut_seq in the context by a summary, and return the new head.

        seen_seq is the last message the summarizer was given (default: the last when the work began). The commit
        releases the lease unless `keep_lease` is set. Raises LeaseLost or Superseded; then nothing has changed.
        Messages that were appended meanwhile come after the cut and stay in the context.
        """
        if not isinstance(work, types.Lease | types.Snapshot):
            raise validation.invalid("work", "the lease or snapshot that the compaction began with", work)
        if isinstance(work, types.Lease) and work.purpose != "compact":
            raise errors.InvalidArgument("`work` must be a lease to compact.", parameter="work")
        now = self._clock()
        snapshot = work.snapshot if isinstance(work, types.Lease) else work
        child = conversation_row.NewId(child_id, now)
        seen = snapshot.last_seq if seen_seq is None else seen_seq
        named = validation.check_optional_id(model, "model")
        draft = compactions.make_draft(cut_seq, seen, summary, pinned, ledger, named, keep_lease)

        def commit(tx: Tx) -> types.Session:
            while True:
                try:
                    return compactions.commit(tx, work, child.id, draft, now)
                except (errors.IdTaken, errors.ConversationDeleted):
                    if not child.renew(tx):
                        raise

        return self.driver.write("commit", commit)

    def undo_compaction(self, session_id: str) -> types.Compaction:
        """Undo the newest compaction: the context has the messages again that its summary replaced."""
        return self.driver.write("undo", lambda tx: compactions.undo(tx, session_id))

    def redo_compaction(self, session_id: str) -> types.Compaction:
        """Redo the compaction that was undone last, unless a compaction, hide, show or redaction came after."""
        return self.driver.write("redo", lambda tx: compactions.redo(tx, session_id))

    def compactions(self, session_id: str) -> list[types.Compaction]:
        """Return every compaction of the conversation, first to last, undone ones too."""
        rows = self.driver.read(lambda tx: conversation_row.query(tx, "compactions_of", session_id))
        return [compactions.from_row(row) for row in rows]

    # --- routes --------------------------------------------------------------------------------------

    def route(self, key: str) -> types.Route:
        """Return the conversation that a chat key is bound to, and the version to pass to bind_route."""
        validation.check_route(key)
        return self.driver.read(lambda tx: sessions.get_route(tx, key))

    def routes(self, session_id: str | None = None) -> list[types.Route]:
        """Return all routes, or those of one conversation."""
        rows = self.driver.read(lambda tx: conversation_row.query_one_or_all(tx, "routes_all", session_id))
        return [types.Route(*row) for row in rows]

    def bind_route(self, key: str, session_id: str | None, *, version: int) -> types.Route:
        """Bind a key to a conversation (None: the next message begins one), if it still has this version."""
        validation.check_route(key)
        validation.check(validation.WholeNumber, version=version)
        now = self._clock()
        return self.driver.write("route", lambda tx: sessions.bind_route(tx, key, session_id, version, now))

    # --- inside --------------------------------------------------------------------------------------

    def _session(self, session_id: str) -> types.Session:
        found = self.get_session(session_id)
        if found is None:
            raise errors.NoSuchSession(session_id)
        return found


def open_driver(
    target: str | os.PathLike[str],
    clock: Callable[[], float] | None,
    durability: str,
    write_timeout: float,
    create: bool,
) -> Driver:
    """Open the driver for a path or an address.

    `create=False` raises StoreUnusable if the PostgreSQL schema contains no store.
    """
    if durability not in DURABILITY:
        raise errors.InvalidArgument(f"`durability` must be one of {', '.join(DURABILITY)}.")
    validation.check(validation.Duration, write_timeout=write_timeout)
    path = os.fspath(target) if isinstance(target, str | os.PathLike) else None
    if not isinstance(path, str):
        raise errors.StoreUnusable("`target` must be a file path or a postgresql:// address.")
    if "://" in path and not is_postgres(path):
        shown = hide_password(path)
        raise errors.StoreUnusable(f"{shown} is not a store address: use a file path or postgresql://...")
    if is_postgres(path):
        # Loaded on demand: psycopg is an optional dependency.
        try:
            from holdfast.store.postgres import driver as postgres_driver  # noqa: PLC0415
        except ImportError as error:
            why = f"PostgreSQL support is not installed. Run: {installation.install_command('pg')}"
            raise errors.PartMissing(why) from error
        plan = SchemaPlan(create=create)
        return postgres_driver.PostgresDriver(
            path, durability=durability, clock=clock, write_timeout=write_timeout, plan=plan
        )
    return sqlite_driver.SqliteDriver(path, durability=durability, clock=clock, write_timeout=write_timeout)
