"""`holdfast sessions`: the group of commands for conversations."""

from __future__ import annotations

from holdfast.cli import lazy_group

COMMANDS = {
    "list": ("holdfast.cli.sessions_list", "List conversations, most recently active first."),
    "search": ("holdfast.cli.sessions_search", "Search the messages of all conversations."),
    "show": ("holdfast.cli.sessions_show", "Show a conversation, or the context that the model sees."),
    "tree": ("holdfast.cli.sessions_tree", "Show the sessions, compactions and branches of conversations as a tree."),
    "title": ("holdfast.cli.sessions_edit:title", "Show, set or remove the title of a conversation."),
    "export": ("holdfast.cli.sessions_export:export", "Export conversations as JSON Lines, Markdown or HTML."),
    "import": ("holdfast.cli.sessions_export:import_", "Import conversations from an export."),
    "delete": ("holdfast.cli.sessions_edit:delete", "Delete conversations permanently."),
    "redact": ("holdfast.cli.sessions_edit:redact", "Delete the text of messages permanently."),
    "prune": ("holdfast.cli.sessions_edit:prune", "Move old conversations into an archive file."),
}
command = lazy_group.group("Show, search, export and delete conversations.", COMMANDS)
