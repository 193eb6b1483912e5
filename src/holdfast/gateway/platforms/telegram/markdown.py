"""Convert Markdown to the HTML that Telegram accepts, and measure it. Pure.

Telegram limits the visible text. It must be bounded without rendering every prefix of a text, so the visible text of
`render` is never longer than its Markdown source, except for the separator after `@` and for indentation by tabs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape, unescape

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.tree import SyntaxTreeNode

from holdfast.gateway import text_split

# The parser drops blocks that are nested more deeply; its default is 20.
_PARSER = MarkdownIt("commonmark", {"html": False, "maxNesting": 200}).enable(["table", "strikethrough"])
_INLINE_PARSER = MarkdownIt("commonmark", {"html": False}).enable("strikethrough")
_TAGS = {"strong": "b", "em": "i", "s": "s"}
_TAG = re.compile(r"<[^>]*>")
_LANGUAGE = re.compile(r"[\w+#.-]{1,30}")
_MENTION = re.compile(r"(?<!\w)@")
_WORD_JOINER = "\u2060"
_SAFE_LINK = re.compile(r"(https?://|mailto:)", re.IGNORECASE)
"""Other schemes are not linked: `tg://user?id=` would notify a user."""
_RULE = "———"


def _parse_inline(state: StateCore) -> None:
    """Parse the text of blocks. Nothing is dropped here, and with a deep nesting thousands of `[` take seconds."""
    for token in state.tokens:
        if token.type == "inline":
            token.children = []
            _INLINE_PARSER.inline.parse(token.content, _INLINE_PARSER, state.env, token.children)


_PARSER.core.ruler.at("inline", _parse_inline)


def measure(text: str) -> int:
    """Return an upper bound of the visible length of a rendered Markdown text."""
    return text_split.utf16_length(text) + text.count("@") + 3 * text.count("\t")


def visible_text(rendered: str) -> str:
    """Return the text that Telegram shows of a rendered text."""
    return unescape(_TAG.sub("", rendered))


def render(text: str) -> str:
    """Return a Markdown text as HTML for Telegram. Names after `@` do not notify users."""
    root = SyntaxTreeNode(_PARSER.parse(text))
    rendered = _Renderer(text.split("\n")).blocks(root.children)
    return rendered if visible_text(rendered).strip() else _escape(text)


def _escape(text: str) -> str:
    return escape(_MENTION.sub(f"@{_WORD_JOINER}", text), quote=False)


class _Renderer:
    """Renders the blocks of one text, whose source lines decide how blocks are separated."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines

    def blocks(self, nodes: Sequence[SyntaxTreeNode], *, depth: int = 0, quoted: bool = False) -> str:
        parts, end = list[str](), None
        for node in nodes:
            first, last = node.map or (0, 0)
            if end is not None:
                parts.append("\n" if first <= end else "\n\n")
            parts.append(self._block(node, depth, quoted))
            while last > first + 1 and not self._lines[last - 1].strip():
                last -= 1
            end = last
        return "".join(parts)

    def _block(self, node: SyntaxTreeNode, depth: int, quoted: bool) -> str:
        match node.type:
            case "paragraph":
                return _inline(node.children[0].children)
            case "heading":
                return f"<b>{_inline(node.children[0].children)}</b>"
            case "fence" | "code_block":
                return _code_block(node)
            case "blockquote":
                inner = self.blocks(node.children, depth=depth, quoted=True)
                return inner if quoted else f"<blockquote>{inner}</blockquote>"
            case "bullet_list" | "ordered_list":
                return self._list(node, depth, quoted)
            case "table":
                first, last = node.map or (0, 0)
                return f"<pre>{escape(chr(10).join(self._lines[first:last]), quote=False)}</pre>"
            case "hr":
                return _RULE
            case _:
                return _escape(node.content)

    def _list(self, node: SyntaxTreeNode, depth: int, quoted: bool) -> str:
        items = list[str]()
        for item in node.children:
            mark = f"{item.info}{item.markup}" if node.type == "ordered_list" else "•"
            # `- - x` begins two lists on one line.
            is_same_line = depth and node.parent is not None and _first_line(item) == _first_line(node.parent)
            indent = "" if is_same_line else "  " * depth
            items.append(f"{indent}{mark} {self.blocks(item.children, depth=depth + 1, quoted=quoted)}".rstrip())
        return "\n".join(items)


def _first_line(node: SyntaxTreeNode) -> int:
    return node.map[0] if node.map else 0


def _code_block(node: SyntaxTreeNode) -> str:
    code, language = escape(node.content.rstrip("\n"), quote=False), (node.info.split() or [""])[0]
    if _LANGUAGE.fullmatch(language):
        return f'<pre><code class="language-{language}">{code}</code></pre>'
    return f"<pre>{code}</pre>"


def _inline(nodes: Sequence[SyntaxTreeNode], *, linked: bool = False) -> str:
    return "".join(_span(node, linked) for node in nodes)


def _span(node: SyntaxTreeNode, linked: bool) -> str:
    match node.type:
        case "softbreak" | "hardbreak":
            return "\n"
        case "code_inline":
            return f"<code>{escape(node.content, quote=False)}</code>"
        case "strong" | "em" | "s":
            return f"<{_TAGS[node.type]}>{_inline(node.children, linked=linked)}</{_TAGS[node.type]}>"
        case "link":
            return _link(str(node.attrs.get("href", "")), _inline(node.children, linked=True), linked)
        case "image":
            return _link(str(node.attrs.get("src", "")), _escape(node.content), linked)
        case _:
            return _escape(node.content)


def _link(target: str, label: str, linked: bool) -> str:
    if linked or not _SAFE_LINK.match(target):
        return label
    return f'<a href="{escape(target)}">{label or "link"}</a>'
