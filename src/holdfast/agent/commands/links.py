"""/link: continue one conversation from several chats."""

from __future__ import annotations

from holdfast import errors
from holdfast.agent.commands import base

CODE = (
    "Within ten minutes, send this to the agent in a direct chat on another platform:\n/link {code}\n"
    "In Slack, write /holdfast before it; in Element, begin with two slashes.\n"
    "That chat then continues this conversation. Do not pass the code on: anyone who has it can read all your "
    "conversations."
)
NOT_OWNER = "This conversation belongs to {owner}. Enter /link there."
CODE_NEEDS_CHAT = "Send `/link CODE` to the agent in a chat. Here, /link creates a code, and /link off ends all links."
UNLINKED = "The links of {chats} were removed."
NONE_LINKED = "No chat is linked. If you created a code, /link replaces it."


async def link(invocation: base.Invocation) -> None:
    """Create a link code, or end the links to this user. The gateway handles both arguments for a sender in a chat."""
    db, conversation_id = invocation.host.db, invocation.conversation_id
    if invocation.argument.lower() == "off":
        found = await db.contacts.links(invocation.host.owner)
        removed = [f"{each.sender} ({each.platform})" for each in found]
        for each in found:
            await db.contacts.unlink(each.platform, each.sender)
        invocation.answer(UNLINKED.format(chats=", ".join(removed)) if removed else NONE_LINKED)
        return
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
