"""/link: continue one conversation from several chats."""

from __future__ import annotations

from holdfast import errors
from holdfast.agent.commands import base

CODE = (
    "Within ten minutes, send this to the agent in a direct chat on another platform:\n/link {code}\n"
    "That chat then continues this conversation. Do not pass the code on: anyone who has it can read all your "
    "conversations."
)
NOT_OWNER = "This conversation belongs to {owner}. Enter /link there."
CODE_NEEDS_CHAT = "Send `/link CODE` to the agent in a chat. Here, /link creates a code."


async def link(invocation: base.Invocation) -> None:
    """Create a link code. The gateway handles `/link CODE` and `/link off`, because they need the sender."""
    db, conversation_id = invocation.host.db, invocation.conversation_id
    if invocation.argument:
        raise errors.InvalidArgument(CODE_NEEDS_CHAT)
    try:
        owner = (await db.conversation(conversation_id)).owner
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        raise errors.HoldfastError("The conversation begins with your first message; /link needs one.") from None
    if owner != invocation.host.owner:
        raise errors.HoldfastError(NOT_OWNER.format(owner=owner or "the terminal"))
    invocation.answer(CODE.format(code=await db.contacts.create_link_code(conversation_id)))
