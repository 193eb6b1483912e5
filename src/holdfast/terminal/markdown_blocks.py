"""Markdown, line by line, as the blocks it is made of. Pure: a line in, the blocks that are complete with it out.

A block is as small as it can be drawn alone: an item of a list, a line of code, a heading, a whole table.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Kind = Literal["text", "item", "quote", "heading", "rule", "table", "fence", "code", "blank"]

_FENCE = re.compile(r"\s*(`{3,}|~{3,})\s*([^`]*)")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*")
_RULE = re.compile(r" {0,3}([-*_])(?:\s*\1){2,}\s*")
_ITEM = re.compile(r"(\s*)([-*+]|(\d{1,9})[.)])\s+(\S.*)")
_QUOTE = re.compile(r" {0,3}((?:> ?)+)(.*)")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)\s*")
_DELIMITERS = re.compile(r"\s*\|?(?:\s*:?-+:?\s*\|)+\s*(?::?-+:?)?\s*")
_CODE = " " * 4


class Block(msgspec.Struct, frozen=True):
    """A piece of Markdown that can be drawn."""

    kind: Kind
    lines: tuple[str, ...] = ()
    """Its text, without what marks it as what it is."""
    mark: str = ""
    """Of an item its bullet or number, of a heading its #s, of a quote its >s, of code its language."""
    indent: int = 0


class Reader:
    """Reads lines; what is not complete yet is open."""

    def __init__(self) -> None:
        self._open: Block | None = None
        self._fence: tuple[str, str] | None = None
        self._in_list = False
        self.source: list[str] = []
        """The lines of what is open, as they came."""

    @property
    def in_code(self) -> bool:
        """Whether the next line belongs to a block of code that has begun."""
        return self._fence is not None

    def read(self, line: str) -> list[Block]:
        """The blocks that are complete now."""
        if self._fence is not None:
            return [self._inside(line, *self._fence)]
        if not line.strip():
            return [*self.finish(), Block("blank")]
        if self._goes_on(line):
            self.source.append(line)
            return []
        done, block = self.finish(), self._begun(line)
        self._in_list = block.kind == "item" or (self._in_list and line.startswith("  "))
        if block.kind in ("heading", "rule", "fence", "code"):
            return [*done, block]
        self._open, self.source = block, [line]
        return done

    def finish(self) -> list[Block]:
        """What was open is complete."""
        done, self._open, self.source = self._open, None, []
        return [done] if done else []

    def _inside(self, line: str, closing: str, language: str) -> Block:
        bare = line.strip()
        if bare.startswith(closing) and not bare.strip(closing[0]):
            self._fence = None
            return Block("fence", (line,))
        return Block("code", (line,), language)

    def _goes_on(self, line: str) -> bool:
        """Whether the line belongs to what is open, which has it then."""
        block = self._open
        if block is None:
            return False
        now = _joined(block, line)
        self._open = now or block
        return now is not None

    def _begun(self, line: str) -> Block:
        if fence := _FENCE.fullmatch(line):
            self._fence = (fence[1], fence[2].split()[0] if fence[2].split() else "")
            return Block("fence", (line,))
        if line.startswith(_CODE) and not self._in_list:
            return Block("code", (line,))
        return begun(line)


def begun(line: str) -> Block:
    """The block that begins with a line, fences and indented code aside."""
    if heading := _HEADING.fullmatch(line):
        return Block("heading", (heading[2] or "",), heading[1])
    if _RULE.fullmatch(line):
        return Block("rule", (line,))
    if item := _ITEM.fullmatch(line):
        return Block("item", (item[4],), item[2], len(item[1]))
    if quote := _QUOTE.fullmatch(line):
        return Block("quote", (quote[2],), ">" * quote[1].count(">"))
    return Block("text", (line.strip(),), indent=len(line) - len(line.lstrip(" ")))


def _joined(block: Block, line: str) -> Block | None:
    """The block with the line, if it belongs to it."""
    if block.kind == "table":
        return msgspec.structs.replace(block, lines=(*block.lines, line)) if "|" in line else None
    if block.kind == "text" and len(block.lines) == 1:
        if _UNDERLINE.fullmatch(line):
            # Complete, but for the line that would say so; it is open until the next.
            return Block("heading", block.lines, "#" if "=" in line else "##")
        if "|" in block.lines[0] and _DELIMITERS.fullmatch(line):
            return Block("table", (*block.lines, line))
    if block.kind == "heading" or _FENCE.fullmatch(line):
        return None
    next_one = begun(line)
    if block.kind == "quote":
        same = next_one.kind == "quote" and next_one.mark == block.mark
        return msgspec.structs.replace(block, lines=(*block.lines, *next_one.lines)) if same else None
    # Only a list that begins with 1 can do so in the middle of a text: most other numbers are just numbers.
    number = next_one.kind == "item" and block.kind == "text" and next_one.mark[:-1].isdigit()
    if next_one.kind == "text" or (number and next_one.mark[:-1] != "1"):
        return msgspec.structs.replace(block, lines=(*block.lines, line.strip()))
    return None
