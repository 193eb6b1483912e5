"""Everything Holdfast raises on purpose.

One hierarchy. The docstring of a class is its default message; what a caller needs to act on is an
attribute, never text to be parsed. No exception carries the body of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class HoldfastError(Exception):
    """Holdfast could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors travel between processes and are copied, though most are not made from their message alone.
        return _again, (type(self), self.args, vars(self))


def _again(kind: type[HoldfastError], args: tuple[Any, ...], attributes: dict[str, Any]) -> HoldfastError:
    error = kind.__new__(kind, *args)
    error.args = args  # Errors of the system are given them when they are initialized, others when they are made.
    vars(error).update(attributes)
    return error


# --- what was named does not exist, or not only once ------------------------------------------------


class NoSuchSession(HoldfastError, LookupError):
    """There is no session with this id."""

    def __init__(self, session_id: str, message: str | None = None) -> None:
        super().__init__(message or f"There is no session {shown(session_id)}.")
        self.session_id = session_id


class ConversationDeleted(NoSuchSession):
    """The conversation of this session was deleted; its ids are never used again."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            session_id,
            f"The conversation of session {shown(session_id)} was deleted; its ids are never used again.",
        )


class Ambiguous(HoldfastError, LookupError):
    """More than one conversation fits; give more of the id."""

    def __init__(self, text: str, candidates: Sequence[str]) -> None:
        listed = ", ".join(candidates)
        super().__init__(f"{shown(text)} fits more than one conversation: {listed}. Give more of the id.")
        self.text = text
        self.candidates = tuple(candidates)


class NoSuchBlob(HoldfastError, LookupError):
    """There is no blob with this digest."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"There is no blob {shown(digest)}.")
        self.digest = digest


# --- somebody else was first -------------------------------------------------------------------------


class Superseded(HoldfastError):
    """The conversation has moved on: its head or its view is no longer what the caller saw."""

    def __init__(self, head: str, epoch: int) -> None:
        super().__init__(f"The conversation has moved on: its head is {head} at epoch {epoch}.")
        self.head = head
        self.epoch = epoch


class LeaseLost(HoldfastError):
    """The lease expired, was released or was taken over; nothing was written. Start again from a new one."""


class Busy(HoldfastError):
    """Another holder has the lease."""

    def __init__(self, holder: str, expires_in: float) -> None:
        super().__init__(f"The lease is held by {holder} for at most {expires_in:.1f} s more.")
        self.holder = holder
        self.expires_in = expires_in


class ForkRefused(HoldfastError):
    """The session already has its one continuation; go on there."""

    def __init__(self, continuation: str) -> None:
        super().__init__(f"The session already has its one continuation, {continuation}; go on there.")
        self.continuation = continuation


class PairingRefused(HoldfastError):
    """No such pairing code is waiting: codes are good for an hour, and once. Let them ask for another."""

    def __init__(self, message: str | None = None, *, locked_for: float = 0.0) -> None:
        if locked_for > 0 and message is None:
            minutes = max(1, round(locked_for / 60))
            message = f"Too many wrong pairing codes were given; none is taken for {minutes} more minutes."
        super().__init__(message)
        self.locked_for = locked_for


class RouteMoved(HoldfastError):
    """The route was bound by somebody else; read it again."""

    def __init__(self, key: str, conversation: str | None, version: int) -> None:
        now = f"conversation {conversation}" if conversation else "no conversation"
        super().__init__(f"The route {shown(key)} now names {now} (version {version}); read it again.")
        self.key, self.conversation, self.version = key, conversation, version


# --- what was given cannot be stored -----------------------------------------------------------------


class UidReused(HoldfastError, ValueError):
    """This uid already names a message with other content."""

    def __init__(self, uid: str, seq: int) -> None:
        super().__init__(f"The uid {shown(uid)} already names message {seq}, which has other content.")
        self.uid = uid
        self.seq = seq


class MessageInvalid(HoldfastError, ValueError):
    """The message cannot be stored as it is."""


class IdInvalid(HoldfastError, ValueError):
    """An id is 1 to 200 printable characters."""


class IdTaken(HoldfastError, ValueError):
    """This id already names another session."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"The id {shown(session_id)} already names another session.")
        self.session_id = session_id


class TitleInvalid(HoldfastError, ValueError):
    """A title is 1 to 100 printable characters."""


class TitleTaken(HoldfastError, ValueError):
    """Another conversation of this owner has this title."""

    def __init__(self, title: str, conversation: str) -> None:
        super().__init__(f"The title {shown(title)} belongs to conversation {conversation}.")
        self.title = title
        self.conversation = conversation


class FolderInvalid(HoldfastError, ValueError):
    """A folder is an absolute path of 1 to 4,096 characters."""


class KeyReused(HoldfastError, ValueError):
    """This key already names something else."""

    def __init__(self, key: str) -> None:
        super().__init__(f"The key {shown(key)} already names something else.")
        self.key = key


class MemoryInvalid(HoldfastError, ValueError):
    """A memory is 1 to 500 printable characters."""


class MemoryFull(HoldfastError):
    """There are as many memories of this owner as are kept; forget some first."""


class NoSuchMemory(HoldfastError, LookupError):
    """This owner has no memory with this id."""

    def __init__(self, memory_id: int) -> None:
        super().__init__(f"There is no memory {shown(str(memory_id))}.")
        self.memory_id = memory_id


class OutOfRange(HoldfastError, ValueError):
    """A number lies outside what the conversation allows."""


class NothingToUndo(HoldfastError):
    """There is nothing to undo."""


class NothingToRedo(HoldfastError):
    """There is nothing to redo: it was not undone, or something since then made it void."""


class ShowRefused(HoldfastError):
    """A compaction was made without these messages; undo that compaction first."""


class HasBranches(HoldfastError):
    """Other conversations read from this one; delete them first."""

    def __init__(self, branches: Sequence[str], conversation: str = "this one") -> None:
        super().__init__(f"Other conversations read from {conversation}: {', '.join(branches)}. Delete them first.")
        self.branches = tuple(branches)


# --- models --------------------------------------------------------------------------------------------


class ModelError(HoldfastError):
    """The model could not answer."""

    # Whether the same call may work in a while, and whether another model might answer it now.
    retryable = False
    elsewhere = True

    def __init__(
        self,
        message: str | None = None,
        *,
        model: str = "",
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.model = model
        self.status = status
        self.retry_after = retry_after


class ModelBusy(ModelError):
    """The provider limits how much may be asked, or is overloaded. Try again later."""

    retryable = True


class ModelServerError(ModelError):
    """The provider's server failed. Try again later."""

    retryable = True


class ModelUnreachable(ModelError):
    """The provider cannot be reached, or took too long to answer."""

    retryable = True


class ModelCut(ModelError):
    """The provider broke off in the middle of its answer. What it said until then is kept."""

    retryable = True


class ReplyMalformed(ModelError):
    """The provider answered with something that is not what its API promises."""

    retryable = True


class KeyRefused(ModelError):
    """The provider refused the key, or there is none."""


class RequestRefused(ModelError):
    """The provider refused the request as it is."""


class ContextOverflow(ModelError):
    """The conversation is too large for the model's context window."""

    elsewhere = False


class NoRoom(HoldfastError):
    """The parts of a request that never change leave no room in the model's window for the conversation."""

    def __init__(self, part: str, tokens: int, window: int) -> None:
        super().__init__(
            f"The model's window of {window:,} tokens leaves no room for the conversation. The biggest part is {part}, "
            f"with {tokens:,}. Make it smaller, or use a model with a larger window."
        )
        self.part, self.tokens, self.window = part, tokens, window


# --- turns ---------------------------------------------------------------------------------------------


class TurnBusy(HoldfastError):
    """Another process is in the middle of a turn of this conversation."""

    def __init__(self, holder: str, expires_in: float) -> None:
        super().__init__(f"A turn of this conversation is running elsewhere ({holder}). Wait for it, or stop it there.")
        self.holder = holder
        self.expires_in = expires_in


class ToolFailed(HoldfastError):
    """A tool could not do what it was asked; the model is told why."""


class NotAllowed(ToolFailed):
    """A tool may not do what it was asked to do."""


class PartMissing(HoldfastError):
    """An optional part of Holdfast is not installed."""


# --- what goes out ---------------------------------------------------------------------------------------


class SendFailed(HoldfastError):
    """The platform did not take the message; it is sent again later."""

    def __init__(self, message: str | None = None, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SendRefused(HoldfastError):
    """The platform will never take the message: it is not sent again."""


# --- programs that talk to this one --------------------------------------------------------------------


class RpcRefused(HoldfastError):
    """A request of another program is not done; it is told why, by a code of JSON-RPC."""

    def __init__(self, code: int, message: str | None = None, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class CommandRefused(HoldfastError):
    """A command was not carried out."""


class NotBegun(HoldfastError):
    """The conversation begins with its first prompt."""


class TooMany(HoldfastError):
    """There are as many of these as there may be."""


class Gone(HoldfastError):
    """The program at the other end is gone; nothing can be said to it any more."""


# --- files that cannot be read -------------------------------------------------------------------------


class SettingInvalid(HoldfastError, ValueError):
    """A settings file cannot be read, or says what it may not."""


class ImportInvalid(HoldfastError, ValueError):
    """This is not an export, or not all of it, or it was changed."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"Line {line}: {reason.rstrip('.')}.")
        self.line = line
        self.reason = reason


class ImportConflict(HoldfastError):
    """A conversation of the export is here already, with other content."""

    def __init__(self, conversation_id: str, line: int) -> None:
        super().__init__(
            f"Conversation {shown(conversation_id)} is here already with other content, "
            f"from line {line} of the export on."
        )
        self.conversation_id = conversation_id
        self.line = line


# --- the store itself --------------------------------------------------------------------------------


class StoreError(HoldfastError):
    """The store could not be used."""

    sqlstate = ""
    """What PostgreSQL calls it, where it said so."""


class StoreBusy(StoreError):
    """The database stayed locked by another process; nothing was written. Try again."""


class StoreFull(StoreError):
    """The disk is full (or a quota is reached); nothing was written. Free some space and try again."""


class StoreCorrupt(StoreError):
    """The database is damaged. Run `holdfast doctor` before anything else writes to it."""


class StoreRefused(StoreError):
    """The database refused a state that must not exist; nothing was written."""


class StoreBroken(StoreError):
    """A table or column is missing from the database. Open it anew, or run `holdfast doctor`."""


class StoreUnusable(StoreError):
    """This place cannot hold a store."""


class StoreMoved(StoreError):
    """The database file was removed or replaced while it was open; nothing was acknowledged."""


class StoreUnreachable(StoreError):
    """The database server cannot be reached; nothing was acknowledged."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            f"PostgreSQL at {where} cannot be reached: {why.rstrip('.')}. Nothing was acknowledged. "
            "Check that it runs and takes connections from here, and try again."
        )
        self.where = where


class StoreClosed(StoreError):
    """This SessionDB is closed."""


class StoreForked(StoreError):
    """A store was open when this process was forked. Open stores only after the fork, or start it with `spawn`."""


class SchemaTooNew(StoreError):
    """The database was written by a newer Holdfast."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"The database has schema {found}; this Holdfast knows schemas up to {known}. Upgrade Holdfast to open it."
        )
        self.found = found
        self.known = known


class BlobDamaged(StoreError):
    """The content of a blob is not what its digest says."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"The content of blob {shown(digest)} is not what its digest says.")
        self.digest = digest


class CopyDamaged(StoreError):
    """A backup or an archive did not pass its checks; nothing was replaced or removed."""

    def __init__(self, path: str, problems: Sequence[str]) -> None:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        super().__init__(f"{path} does not pass its checks: {problems[0]}{more}. Nothing was replaced or removed.")
        self.path = path
        self.problems = tuple(problems)


class NotABackup(StoreError):
    """What is there is not a backup that Holdfast made; it is not overwritten unless that is asked for."""


class CopyRefused(StoreError):
    """A copy goes into an empty store, or goes on in the one it was begun in."""


class CopyUnfinished(StoreError):
    """The two stores do not hold the same yet. Stop whatever writes to the source, and copy again."""

    def __init__(self, differing: Sequence[str], finished: bool) -> None:
        listed = ", ".join(differing[:5]) + (f" and {len(differing) - 5} more" if len(differing) > 5 else "")
        super().__init__(
            f"The copy was finished before, and since then one of the stores was used; they differ in {listed}."
            if finished
            else f"What changed while it was copied: {listed}. Stop whatever writes to the source, and copy again."
        )
        self.differing = tuple(differing)
        self.finished = finished


class LeasesUnavailable(StoreError):
    """Leases cannot be used. Work continues without them. Run `holdfast doctor`, then restart this program."""


def shown(text: object, limit: int = 60) -> str:
    """Text from outside, safe and short enough to stand in an error."""
    quoted = repr(text) if isinstance(text, str) else f"<{type(text).__name__}>"
    return quoted if len(quoted) <= limit else quoted[: limit - 2] + "…" + quoted[-1]
