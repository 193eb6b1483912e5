"""Define the errors that Holdfast raises, grouped by what a caller can do about them.

A message says what happened, then what to do. Values that a caller needs are attributes. No error carries the body of a
message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class HoldfastError(Exception):
    """The base class of all errors of Holdfast."""

    default_message = "The operation failed."

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.default_message)

    def __reduce__(self) -> tuple[Any, ...]:
        # Most constructors take values, not the message, so pickle and copy cannot call them again.
        return _restore, (type(self), self.args, vars(self))


def _restore(kind: type[HoldfastError], args: tuple[Any, ...], attributes: dict[str, Any]) -> HoldfastError:
    error = kind.__new__(kind, *args)
    error.args = args  # OSError subclasses set `args` in __init__, the others in __new__.
    vars(error).update(attributes)
    return error


# --- correct the call --------------------------------------------------------------------------------


class InvalidArgument(HoldfastError, ValueError):
    """Raised when an argument has the wrong type, is out of range or cannot be stored as JSON; nothing was written."""

    def __init__(self, message: str | None = None, *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class UidReused(HoldfastError, ValueError):
    """Raised when a uid already names a message with other content."""

    def __init__(self, uid: str, seq: int) -> None:
        super().__init__(f"The uid {quote(uid)} already names message {seq}, which has other content. Use a new uid.")
        self.uid = uid
        self.seq = seq


class IdTaken(HoldfastError, ValueError):
    """Raised when an id or key already names something else."""

    def __init__(self, taken: str) -> None:
        super().__init__(f"{quote(taken)} already names something else. Choose another id or key.")
        self.taken = taken


class TitleTaken(HoldfastError, ValueError):
    """Raised when another conversation of the owner has the title."""

    def __init__(self, title: str, conversation: str) -> None:
        super().__init__(f"Conversation {conversation} has the title {quote(title)} already. Choose another title.")
        self.title = title
        self.conversation = conversation


class SettingInvalid(HoldfastError, ValueError):
    """Raised when a settings file cannot be read or holds an invalid value."""


class PartMissing(HoldfastError):
    """Raised when an optional part of Holdfast is not installed."""


# --- look it up again --------------------------------------------------------------------------------


class NotFound(HoldfastError, LookupError):
    """Raised when no attachment or memory has the digest or id."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"There is no {kind} {quote(name)}.")
        self.name = name


class NoSuchSession(HoldfastError, LookupError):
    """Raised when no session has the id."""

    def __init__(self, session_id: str, message: str | None = None) -> None:
        super().__init__(message or f"There is no session {quote(session_id)}.")
        self.session_id = session_id


class ConversationDeleted(NoSuchSession):
    """Raised when the conversation of the session was deleted."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            session_id, f"The conversation of session {quote(session_id)} was deleted. Its ids are never used again."
        )


class Ambiguous(HoldfastError, LookupError):
    """Raised when a text matches several conversations."""

    def __init__(self, text: str, candidates: Sequence[str]) -> None:
        listed = ", ".join(candidates)
        super().__init__(f"{quote(text)} matches several conversations: {listed}. Give more of the id.")
        self.text = text
        self.candidates = tuple(candidates)


# --- another caller was first: read again, then decide again ------------------------------------------


class Superseded(HoldfastError):
    """Raised when the conversation changed since the caller read it."""

    def __init__(self, head: str, epoch: int) -> None:
        super().__init__(f"The conversation has changed: its head is now {head} at epoch {epoch}. Read it again.")
        self.head = head
        self.epoch = epoch


class ForkRefused(HoldfastError):
    """Raised when the session already has a continuation."""

    def __init__(self, continuation: str) -> None:
        super().__init__(f"The session already has a continuation, {continuation}. Continue there.")
        self.continuation = continuation


class RouteMoved(HoldfastError):
    """Raised when another caller bound the route."""

    def __init__(self, key: str, conversation: str | None, version: int) -> None:
        now = f"conversation {conversation}" if conversation else "no conversation"
        super().__init__(f"The route {quote(key)} now names {now} (version {version}). Read it again.")
        self.key, self.conversation, self.version = key, conversation, version


class Busy(HoldfastError):
    """Raised when another holder has the lease."""

    def __init__(self, holder: str, expires_in: float, message: str | None = None) -> None:
        super().__init__(message or f"The lease is held by {holder} for at most {expires_in:.1f} s more.")
        self.holder = holder
        self.expires_in = expires_in


class LeaseLost(HoldfastError):
    """Raised when the caller's lease expired, was released or was taken over."""

    default_message = (
        "The lease expired, was released or was taken over; nothing was written. Start again with a new lease."
    )


# --- do something else first ---------------------------------------------------------------------------


class LimitReached(HoldfastError):
    """Raised when there are as many memories, sessions or prompts as allowed."""


class NothingToUndo(HoldfastError):
    """Raised when there is nothing to undo or redo, or a later change made it void."""

    default_message = "There is nothing to undo or redo, or a later change made it void."


class ShowRefused(HoldfastError):
    """Raised when a compaction was made without the messages that are to be shown."""


class HasBranches(HoldfastError):
    """Raised when other conversations are branches of the one to delete."""

    def __init__(self, branches: Sequence[str], conversation: str = "this one") -> None:
        super().__init__(
            f"Other conversations are branches of {conversation}: {', '.join(branches)}. Delete them first."
        )
        self.branches = tuple(branches)


class PairingRefused(HoldfastError):
    """Raised when a pairing or link code is wrong, used or too old, or after too many wrong codes."""

    default_message = "The code is wrong, used or too old. Get a new one."

    def __init__(self, message: str | None = None, *, locked_for: float = 0.0) -> None:
        if locked_for > 0 and message is None:
            minutes = max(1, round(locked_for / 60))
            message = f"Too many wrong codes. Try again in {minutes} minutes."
        super().__init__(message)
        self.locked_for = locked_for


# --- models --------------------------------------------------------------------------------------------


class ModelError(HoldfastError):
    """The base class of the errors of models."""

    default_message = "The model could not answer."

    # Whether the same call may succeed later, and whether another model may answer it now.
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
    """Raised when the provider is overloaded or a rate limit is reached."""

    retryable = True


class ModelServerError(ModelError):
    """Raised when the provider's server failed, or sent a reply that does not follow its API."""

    retryable = True


class ModelUnreachable(ModelError):
    """Raised when the provider cannot be reached, or took too long to answer."""

    retryable = True


class ModelCut(ModelError):
    """Raised when the provider's reply was cut off. The part that was received is kept."""

    retryable = True


class KeyRefused(ModelError):
    """Raised when the API key is missing, or the provider refused it."""


class RequestRefused(ModelError):
    """Raised when the provider refused the request."""


class ContextOverflow(ModelError):
    """Raised when the conversation is too large for the model's context window."""

    elsewhere = False


class NoRoom(HoldfastError):
    """Raised when the fixed parts of a request leave no room for the conversation in the context window."""

    def __init__(self, part: str, tokens: int, window: int) -> None:
        super().__init__(
            f"The model's window of {window:,} tokens leaves no room for the conversation. The biggest part is {part}, "
            f"with {tokens:,}. Make it smaller, or use a model with a larger window."
        )
        self.part, self.tokens, self.window = part, tokens, window


# --- tools, platforms and clients ----------------------------------------------------------------------


class TurnFailed(HoldfastError):
    """Raised when `TurnResult.raise_for_status()` is called for a turn that was not completed."""

    def __init__(self, message: str | None = None, *, exit_reason: str = "failed") -> None:
        super().__init__(message)
        self.exit_reason = exit_reason


class OutputInvalid(HoldfastError):
    """Raised when a model's answer does not match the requested output type."""


class ToolFailed(HoldfastError):
    """Raised when a tool call failed. The reason is sent to the model."""


class NotAllowed(ToolFailed):
    """Raised when a tool call is not permitted."""


class SendFailed(HoldfastError):
    """Raised when a platform did not accept a message. It is sent again later."""

    def __init__(self, message: str | None = None, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SendRefused(HoldfastError):
    """Raised when a platform refused a message for good. It is not sent again."""


class RpcRefused(HoldfastError):
    """Raised when a JSON-RPC request is refused. The response carries the code, the message and the data."""

    def __init__(self, code: int, message: str | None = None, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class Gone(HoldfastError):
    """Raised when the connection to the other program is closed."""

    default_message = "The connection to the other program is closed."


# --- exports, backups, copies and attachments ------------------------------------------------------------


class ImportInvalid(HoldfastError, ValueError):
    """Raised when a file is not an export, is incomplete or was changed."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"Line {line}: {reason.rstrip('.')}.")
        self.line = line
        self.reason = reason


class ImportConflict(HoldfastError):
    """Raised when a conversation of the export exists with other content."""

    def __init__(self, conversation_id: str, line: int) -> None:
        super().__init__(
            f"Conversation {quote(conversation_id)} exists with other content, from line {line} of the export on."
        )
        self.conversation_id = conversation_id
        self.line = line


# --- the store -------------------------------------------------------------------------------------------


class StoreError(HoldfastError):
    """The base class of the errors of the store."""

    default_message = "The store cannot be used."

    sqlstate = ""
    """The SQLSTATE code that PostgreSQL reported, if any."""


class StoreBusy(StoreError):
    """Raised when the database stayed locked by another process; nothing was written."""

    default_message = "The database stayed locked by another process; nothing was written. Try again."


class StoreUnreachable(StoreError):
    """Raised when the database server cannot be reached; nothing was acknowledged."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            f"PostgreSQL at {where} cannot be reached: {why.rstrip('.')}. Nothing was acknowledged. "
            "Check that it runs and takes connections from here, and try again."
        )
        self.where = where


class StoreClosed(StoreError):
    """Raised when the SessionDB is closed."""

    default_message = "This SessionDB is closed. Open a new one."


class StoreForked(StoreError):
    """Raised when a store was open when the process was forked."""

    default_message = "A store was open when this process was forked. Open stores after the fork, or use `spawn`."


class StoreMoved(StoreError):
    """Raised when the database file was removed or replaced while it was open."""

    default_message = (
        "The database file was removed or replaced while it was open; nothing was acknowledged. Open it again."
    )


class StoreBroken(StoreError):
    """Raised when a table or column is missing from the database."""

    default_message = "A table or column is missing from the database. Open it again, or run `holdfast doctor`."


class StoreFull(StoreError):
    """Raised when the disk is full or a quota is reached; nothing was written."""

    default_message = "The disk is full (or a quota is reached); nothing was written. Free some space and try again."


class StoreCorrupt(StoreError):
    """Raised when the database is damaged."""

    default_message = "The database is damaged. Run `holdfast doctor` before anything else writes to it."


class StoreRefused(StoreError):
    """Raised when a constraint of the database refused a change; nothing was written."""

    default_message = "A constraint of the database refused the change; nothing was written. Report this as a bug."


class StoreUnusable(StoreError):
    """Raised when the database cannot be opened or written here."""

    default_message = "The database cannot be opened here."


class SchemaTooNew(StoreError):
    """Raised when the database was written by a newer Holdfast."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"The database has schema {found}; this Holdfast knows schemas up to {known}. Upgrade Holdfast to open it."
        )
        self.found = found
        self.known = known


class LeasesUnavailable(StoreError):
    """Raised when leases cannot be used. Work continues without them."""

    default_message = (
        "Leases cannot be used. Work continues without them. Run `holdfast doctor`, then restart this program."
    )


class BlobDamaged(StoreError):
    """Raised when the content of an attachment does not match its digest."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"The content of blob {quote(digest)} does not match its digest.")
        self.digest = digest


class CopyRefused(StoreError):
    """Raised when the source or target of a backup, restore or copy cannot be used; nothing was written."""


class CopyDamaged(StoreError):
    """Raised when a backup or an archive failed its checks; nothing was replaced or removed."""

    def __init__(self, path: str, problems: Sequence[str]) -> None:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        super().__init__(f"{path} failed its checks: {problems[0]}{more}. Nothing was replaced or removed.")
        self.path = path
        self.problems = tuple(problems)


class CopyUnfinished(StoreError):
    """Raised when a store and its copy differ."""

    def __init__(self, differing: Sequence[str], finished: bool) -> None:
        listed = ", ".join(differing[:5]) + (f" and {len(differing) - 5} more" if len(differing) > 5 else "")
        super().__init__(
            f"The copy was finished before, and one of the stores was used since then. They differ in {listed}."
            if finished
            else f"The unfinished copy differs from its source in {listed}. Delete it and copy again."
        )
        self.differing = tuple(differing)
        self.finished = finished


def quote(text: object, limit: int = 60) -> str:
    """Return the text of a caller, quoted and shortened for an error message."""
    plain = isinstance(text, str | float | None) or (isinstance(text, int) and abs(text) < 2**128)
    quoted = repr(text) if plain else f"<{type(text).__name__}>"
    return quoted if len(quoted) <= limit else quoted[: limit - 2] + "…" + quoted[-1]
