"""SessionDB under an agent of your own: it keeps the log, and says what the model is to see."""

from collections.abc import Sequence

from holdfast import NewConversation, SessionDB, types


def ask_your_model(context: Sequence[types.Message]) -> str:  # put the call of your model here
    return f"I was shown {len(context)} messages, the last one: {context[-1].content}"


with SessionDB("chat/chat.db") as db:
    chat = "family"  # any id; the conversation is born with its first message
    for said in ("The train leaves at 9:40.", "Platform 4."):
        db.append_message(chat, role="user", content=said, create=NewConversation(source="example"))
        db.append_message(chat, role="assistant", content=ask_your_model(db.context(chat)))
    for message in db.transcript(chat):
        print(message.seq, message.role, message.content)
