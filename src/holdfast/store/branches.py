"""Children of a session: its one continuation, or a branch, which is a separate conversation."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import msgspec

from holdfast import errors, types
from holdfast.store import (
    compactions,
    conversation_row,
    leases,
    log,
    message_codec,
    sessions,
    titles,
    validation,
    visibility,
)
from holdfast.store.driver import Tx


class Birth(types.NewConversation, frozen=True, kw_only=True):
    """The arguments of create_session."""

    parent: str | None = None


B = TypeVar("B", bound=types.NewConversation)


def validate(new: B) -> B:
    """Return a new conversation with its values as they are stored."""
    return msgspec.structs.replace(
        new,
        source=validation.check_id(new.source, "source"),
        model=validation.check_optional_id(new.model, "model"),
        title=titles.clean(new.title) if new.title is not None else None,
        owner=validation.check_owner(new.owner),
        route=validation.check_route(new.route) if new.route is not None else None,
        folder=titles.clean_folder_or_none(new.folder),
        metadata=message_codec.check_metadata(new.metadata),
    )


class Cut(NamedTuple):
    """The arguments of a branch: its fork point, and values that differ from the origin's."""

    at_seq: int | None
    title: str | None
    folder: str | None


def create(tx: Tx, session_id: str, birth: Birth, now: float) -> str:
    """Create a session with or without a parent; a repeated call returns the session it created."""
    found = sessions.get(tx, session_id)
    if found is not None:
        if found.parent_session_id != birth.parent or (birth.parent is None and found.owner != birth.owner):
            raise errors.IdTaken(session_id)
        return session_id
    sessions.refuse_taken(tx, session_id)
    here = conversation_row.lock(tx, birth.parent) if birth.parent is not None else None
    if here is not None and _ended_by_compression(tx, here):
        _continue(tx, here, session_id, birth, now)
    else:
        _branch_off(tx, session_id, birth, here, now)
    return session_id


def _ended_by_compression(tx: Tx, here: conversation_row.State) -> bool:
    row = tx.one("session_origin", conversation=here.key, ordinal=here.asked)
    return row is not None and row[2] == "compression"


def _continue(tx: Tx, here: conversation_row.State, session_id: str, birth: Birth, now: float) -> None:
    """Continue a session that was ended by 'compression'; the context has only the messages of the child."""
    continuation = tx.one("session_id_at", conversation=here.key, ordinal=here.asked + 1)
    if continuation is not None:
        raise errors.ForkRefused(continuation[0])
    if birth.title is not None:
        titles.refuse_taken(tx, here.owner, birth.title, but=here.id)
        tx.run("title_set", key=here.key, title=birth.title)
    if birth.folder is not None:
        tx.run("folder_set", key=here.key, folder=birth.folder)
    if birth.metadata:
        titles.merge_metadata(tx, here, birth.metadata)
    last = here.last_seq
    _, model, _ = tx.one("session_origin", conversation=here.key, ordinal=here.head) or ("", None, None)
    draft = compactions.draft(last, last, "", (), None, birth.model)
    compactions.rotate(tx, here, session_id, draft, None, now, birth.source, birth.model or model)


def _branch_off(tx: Tx, session_id: str, birth: Birth, here: conversation_row.State | None, now: float) -> None:
    if birth.title is not None:
        titles.refuse_taken(tx, birth.owner, birth.title)
    parent = sessions.conversation(tx, here) if here is not None else None
    sessions.born(
        tx,
        session_id,
        owner=birth.owner,
        source=birth.source,
        model=birth.model,
        title=birth.title,
        folder=birth.folder or (parent.folder if parent else None),
        metadata=message_codec.encode_metadata(birth.metadata or (parent.metadata if parent else None)),
        now=now,
        forked_from=birth.parent,
        forked_at=None if birth.parent is None else 0,
    )


def branch(tx: Tx, session_id: str, branch_id: str, cut: Cut, now: float) -> str:
    """Create a conversation that reads the log of the origin up to a message."""
    at_seq, title, folder = cut
    here = conversation_row.lock(tx, session_id)
    if _branched_before(tx, here, at_seq, branch_id):
        return branch_id
    sessions.refuse_taken(tx, branch_id)
    at = here.last_seq if at_seq is None else at_seq
    if at > here.last_seq:
        raise errors.InvalidArgument(f"`at_seq` must be at most {here.last_seq}, not {at}.", parameter="at_seq")
    if title is not None:
        titles.refuse_taken(tx, here.owner, title)
    source, model, _ = tx.one("session_origin", conversation=here.key, ordinal=here.head) or ("", None, None)
    origin = sessions.conversation(tx, here)
    base = compactions.newest_seen(tx, here.key, here.compaction_epoch, at)
    made = sessions.born(
        tx,
        branch_id,
        owner=here.owner,
        source=source,
        model=model,
        title=title or titles.numbered(tx, here.owner, here.title),
        folder=folder or origin.folder,
        metadata=message_codec.encode_metadata(origin.metadata),
        now=now,
        forked_from=_session_at(tx, here, at_seq),
        forked_at=at,
        forked_epoch=base.epoch if base and at else None,
        origin=here.key if at else None,
    )
    visibility.copy_to_branch(tx, here.key, made)
    visibility.copy_pins_to_branch(tx, here.key, made)
    return branch_id


def _branched_before(tx: Tx, here: conversation_row.State, at_seq: int | None, branch_id: str) -> bool:
    found = sessions.get(tx, branch_id)
    if found is None or found.ordinal > 1 or at_seq not in (None, found.first_seq - 1):
        return False
    parent = tx.one("session_place", id=found.parent_session_id)
    return parent is not None and parent[0] == here.key


def _session_at(tx: Tx, here: conversation_row.State, at_seq: int | None) -> str:
    """Return the session that holds the last inherited message of a branch."""
    if at_seq is None:
        return here.head_id
    row = tx.one("session_holding", conversation=here.key, seq=max(at_seq, here.forked_at + 1))
    return row[1] if row else here.head_id


def begin(tx: Tx, step: log.AppendRequest, who: leases.Holder, ttl: float) -> tuple[types.Receipt, types.Lease]:
    """Create a conversation with its first message and turn lease; the same holder may repeat it."""
    receipt = step(tx)[0]
    if not step.created and not receipt.duplicate:
        raise errors.IdTaken(step.session_id)  # Also rolls the message back.
    return receipt, leases.acquire(tx, step.session_id, "turn", who, ttl)
