"""Children of a session: its one continuation, or a branch, which is a separate conversation."""

from __future__ import annotations

import msgspec

from holdfast import errors, types
from holdfast.store import compactions, conversation_row, sessions, titles, visibility
from holdfast.store.conversation_row import ConversationRow
from holdfast.store.driver import Tx


def create(tx: Tx, session_id: str, parent_id: str | None, new: types.NewConversation, now: float) -> str:
    """Create a session with or without a parent; a repeated call returns the session it created."""
    found = sessions.get(tx, session_id)
    if found is not None:
        if found.parent_session_id != parent_id or (parent_id is None and found.owner != new.owner):
            raise errors.IdTaken(session_id)
        return session_id
    sessions.check_id_free(tx, session_id)
    if parent_id is None:
        sessions.insert_conversation(tx, session_id, new, now)
        return session_id
    here = conversation_row.lock(tx, parent_id)
    ended = tx.one("session_origin", conversation=here.key, ordinal=here.ordinal)
    if ended is not None and ended[2] == "compression":
        _continue(tx, here, session_id, new, now)
    else:
        parent = sessions.get_conversation(tx, here)
        inherited = msgspec.structs.replace(
            new, folder=new.folder or parent.folder, metadata=new.metadata or parent.metadata
        )
        sessions.insert_conversation(tx, session_id, inherited, now, forked_from=parent_id, forked_at=0)
    return session_id


def _continue(tx: Tx, here: ConversationRow, session_id: str, new: types.NewConversation, now: float) -> None:
    """Continue a session that was ended by 'compression'; the context has only the messages of the child."""
    continuation = tx.one("session_id_at", conversation=here.key, ordinal=here.ordinal + 1)
    if continuation is not None:
        raise errors.ForkRefused(continuation[0])
    if new.title is not None:
        titles.check_title_free(tx, here.owner, new.title, but=here.id)
        tx.run("title_set", key=here.key, title=new.title)
    if new.folder is not None:
        tx.run("folder_set", key=here.key, folder=new.folder)
    if new.metadata:
        titles.merge_metadata(tx, here, new.metadata)
    last = here.last_seq
    _, model, _ = tx.one("session_origin", conversation=here.key, ordinal=here.head) or ("", None, None)
    draft = compactions.make_draft(last, last, "", (), None, new.model)
    compactions.write(tx, here, session_id, draft, None, now, new.source, new.model or model)


def branch(
    tx: Tx, session_id: str, branch_id: str, at_seq: int | None, title: str | None, folder: str | None, now: float
) -> str:
    """Create a conversation that reads the log of the origin up to a message."""
    here = conversation_row.lock(tx, session_id)
    if _was_branched(tx, here, at_seq, branch_id):
        return branch_id
    sessions.check_id_free(tx, branch_id)
    at = here.last_seq if at_seq is None else at_seq
    if at > here.last_seq:
        raise errors.InvalidArgument(f"`at_seq` must be at most {here.last_seq}, not {at}.", parameter="at_seq")
    source, model, _ = tx.one("session_origin", conversation=here.key, ordinal=here.head) or ("", None, None)
    origin = sessions.get_conversation(tx, here)
    base = compactions.find_covering_upto(tx, here.key, here.compaction_epoch, at)
    new = types.NewConversation(
        source=source,
        model=model,
        title=title or titles.next_branch_title(tx, here.owner, here.title),
        owner=here.owner,
        folder=folder or origin.folder,
        metadata=origin.metadata,
    )
    # The session that holds the last inherited message.
    holding = max(at, here.forked_at + 1)
    row = tx.one("session_holding", conversation=here.key, seq=holding) if at_seq is not None else None
    made = sessions.insert_conversation(
        tx,
        branch_id,
        new,
        now,
        forked_from=row[1] if row else here.head_id,
        forked_at=at,
        forked_epoch=base.epoch if base and at else None,
        origin=here.key if at else None,
    )
    visibility.copy_to_branch(tx, here.key, made)
    return branch_id


def _was_branched(tx: Tx, here: ConversationRow, at_seq: int | None, branch_id: str) -> bool:
    """Return whether an earlier attempt created this branch."""
    found = sessions.get(tx, branch_id)
    if found is None or found.ordinal > 1 or at_seq not in (None, found.first_seq - 1):
        return False
    parent = tx.one("session_place", id=found.parent_session_id)
    return parent is not None and parent[0] == here.key
