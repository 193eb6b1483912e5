"""Convert between Markdown and mrkdwn, the text format of Slack. Pure.

Outbound text is escaped before anything else, so `<` only begins a link to a web or mail address: no text can mention a
user, a channel or a group.
"""

from __future__ import annotations

import re

from holdfast.gateway import text_split

_CODE = re.compile(
    r"^ {0,3}(?P<fence>`{3,}|~{3,})[^\n`]*\n(?P<block>.*?)(?:^ {0,3}(?P=fence)[`~]*[ \t]*$|\Z)"
    r"|(?<!`)(?P<ticks>`+)(?!`)(?P<span>[^\n]+?)(?<!`)(?P=ticks)(?!`)",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"!?\[([^\[\]\n]+)\]\(((?:https?://|mailto:)[^\s()|]+)\)")
_BULLET = re.compile(r"^([ \t]*)[*+-][ \t]+", re.MULTILINE)
_EMPHASIS = re.compile(
    r"<[^>]*>"  # a link stays as it is
    r"|(?P<strong>\*\*|__)(?=[^\s*_])(?P<bold>[^\n]+?)(?<=\S)(?P=strong)"
    r"|~~(?=\S)(?P<struck>[^\n]+?)(?<=\S)~~"
    r"|(?<![\w*])\*(?=[^\s*])(?P<italic>[^*\n]+)(?<=\S)\*(?![\w*])"
)
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.*?)[ \t#]*$", re.MULTILINE)
_REFERENCE = re.compile(r"<([^<>]*)>")
_FENCE = "```"


def render(text: str) -> str:
    """Convert Markdown to mrkdwn."""
    parts, end = list[str](), 0
    for code in _CODE.finditer(text):
        parts += [_render_prose(text[end : code.start()]), _render_code(code)]
        end = code.end()
    return "".join([*parts, _render_prose(text[end:])])


def measure(text: str) -> int:
    """Return an upper bound for the length of `render(text)` in UTF-16 units; an open code block takes 4 more."""
    units = text_split.utf16_length(text)
    return units + 4 * text.count("&") + 3 * (text.count("<") + text.count(">")) + text.count(_FENCE)


def escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _render_code(code: re.Match[str]) -> str:
    if code["fence"]:
        # Slack ends a code block at the next fence of three, so a fence in the content is split by an invisible space.
        content = escape(code["block"].removesuffix("\n")).replace(_FENCE, "``\u200b`")
        return f"{_FENCE}\n{content}\n{_FENCE}"
    content = escape(code["span"]).replace("`", "\u02cb")
    return f"`{content}`"


def _render_prose(text: str) -> str:
    text = _LINK.sub(r"<\2|\1>", escape(text))
    text = _EMPHASIS.sub(_render_emphasis, _BULLET.sub(r"\1• ", text))
    return _HEADING.sub(lambda found: f"*{found[1].replace('*', '')}*", text)


def _render_emphasis(found: re.Match[str]) -> str:
    for name, mark in (("bold", "*"), ("struck", "~"), ("italic", "_")):
        if found[name]:
            return f"{mark}{found[name]}{mark}"
    return found[0]


def has_mention(text: str, user: str) -> bool:
    """Return whether an inbound text mentions a user."""
    return re.search(rf"<@{re.escape(user)}[|>]", text) is not None


def parse(text: str, bot: str) -> str:
    """Convert inbound mrkdwn to plain text: mentions of the bot are removed, other references are spelled out."""
    text = _REFERENCE.sub(lambda found: _spell(found[1], bot), text)
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()


def _spell(reference: str, bot: str) -> str:
    target, _, label = reference.partition("|")
    if target == f"@{bot}":
        return ""
    if target.startswith("@"):
        return f"@{label.removeprefix('@') or target[1:]}"
    if target.startswith("#"):
        return f"#{label or target[1:]}"
    if target.startswith("!"):
        return label or f"@{target[1:].partition('^')[0]}"
    return target if not label or label in target else f"{label} ({target})"
