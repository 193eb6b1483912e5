"""Pages of a conversation: complete, with the state of each message, and with every text escaped."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import SessionDB, content_parts, errors
from holdfast.store.transfer import render
from tests.support import backends, conversations

HOSTILE = (
    "<script>alert(1)</script> <img src=http://x/y.png> ![p](http://x/p.png) [l](javascript:x) www.example.com\n"
    "# heading\n---\n1. one\n2) two\n- three\n+ four\n=====\n> quote\n| a | b |\n    code\n```\n"
    "`x` *b* _i_ ~s~ &amp; $m$\n"
    "http://example.com me@example.com :smile: \\ {: .x} <!-- -->\x1b[2J\x07\u202e\u2028"
)


@pytest.fixture
def db() -> Iterator[SessionDB]:
    with SessionDB(":memory:", clock=conversations.Clock()) as made:
        yield made


def page(db: SessionDB, form: render.Form, *ids: str) -> str:
    out = io.StringIO()
    db.admin.export_pages(out, ids or None, form)
    return out.getvalue()


class Tags(HTMLParser):
    """A page as a browser parses it: its tags with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._style = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._style = tag == "style"

    def handle_data(self, data: str) -> None:
        if not self._style:
            self.text += data


def unescape(markdown: str) -> str:
    """The text Markdown shows for escaped text: entities and backslashes resolved, hard breaks as line ends."""
    shown = markdown.replace("  \n", "\n").replace("&nbsp;", " ")
    return re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", shown)


@given(st.text(st.characters(codec="utf-8")))
def test_escaped_text_has_no_markup_and_is_complete(text: str) -> None:
    made = render.escape_markdown(text)
    plain = re.sub(r"\\[!-/:-@\[-`{-~]|&nbsp;", "", made)
    assert not re.search(r"[\\`*_\[\]<>&|~$@{}^#]", plain)
    assert not re.search(r"^(?:[+=-]|\d+[.)])", made, re.MULTILINE)
    assert not re.search(r"^(?: {4}|\t)", made, re.MULTILINE)
    squeezed = "".join(unescape(made).split())
    assert squeezed == "".join(render.escape_invisible(text).split())


@given(st.text(st.characters(codec="utf-8")))
def test_fence_contains_any_text(text: str) -> None:
    first, *inside, last = render.fence(text).split("\n")
    assert first == last
    assert set(first) == {"`"}
    assert not any(line.strip().startswith(first) for line in inside)
    assert "\n".join(inside) == render.escape_invisible(text)
    assert all(character.isprintable() or character in "\u200c\u200d" for line in inside for character in line)


@pytest.fixture
def story(db: SessionDB) -> SessionDB:
    db.create_session("talk", source="cli", title="A <b>title</b>")
    for content in ("one", "two", HOSTILE):
        db.append_message("talk", role="user", content=content)
    calls = [{"id": "c1", "name": "</details><script>", "arguments": {"path": "```\n<b>"}}]
    db.append_message("talk", role="assistant", content="", tool_calls=calls)
    db.append_message("talk", role="tool", content="</pre><script>", tool_call_id="c1")
    db.commit_compaction(db.snapshot("talk"), summary="Summary <i>", cut_seq=2, pinned=[1], child_id="second")
    db.append_message("talk", role="user", content=[{"type": "text", "text": "part"}, {"type": "image", "url": "x"}])
    db.hide("talk", 3, 3)
    db.branch("talk", 6, branch_id="twig")
    db.append_message("twig", role="user", content="secret")
    db.redact("twig", 7)
    return db


def test_html_has_no_scripts_links_or_external_resources(story: SessionDB) -> None:
    text = page(story, "html")
    found = Tags(text)
    allowed = "html head meta title style body h1 h2 p section div details summary pre em"
    assert {tag for tag, _ in found.tags} <= set(allowed.split())
    named = {name for _, attributes in found.tags for name in attributes}
    assert named <= {"charset", "http-equiv", "content", "name", "class", "dir"}
    assert "default-src 'none'" in text
    assert render.escape_invisible(HOSTILE) in found.text
    assert [text.count(tag) for tag in ("<!DOCTYPE html>", "</html>", "<h1 ")] == [1, 1, 2]


def test_both_forms_show_states_compactions_and_branches(story: SessionDB) -> None:
    markdown, browser = page(story, "markdown", "twig"), page(story, "html", "twig")
    states = re.findall(r"^### (\d+) · \w+ · 2026-09-21 14:13 UTC(?: · \*([\w ]+)\*)?$", markdown, re.MULTILINE)
    assert [(int(seq), state) for seq, state in states] == [
        (1, "pinned"), (2, "in the summary"), (3, "hidden"), (4, ""), (5, ""), (6, ""), (7, "redacted"),
    ]  # fmt: skip
    shown = re.findall(r"<h2>(\d+) · \w+ · [^<]+?(?: <em>([\w ]+)</em>)?</h2>", browser)
    assert [(seq, state) for seq, state in shown] == states
    assert "secret" not in markdown + browser
    compaction = "Compaction: in the context, this summary replaces the messages up to 2."
    assert f"> **{compaction}**" in markdown
    assert "> Summary \\<i\\>" in markdown
    assert "*Session talk ended (compression) and continues as second.*" in markdown
    assert "*The branch twig begins here.*" in markdown
    assert "\npart\n\n(image)\n" in page(story, "markdown", "talk")
    said = Tags(browser).text
    assert all(text in said for text in (compaction, "Summary <i>", "The branch twig begins here."))
    story.undo_compaction("talk")
    assert "> **Compaction (not in force)" in page(story, "markdown", "talk")


def test_tool_calls_and_results_are_collapsed(story: SessionDB) -> None:
    markdown, browser = page(story, "markdown", "talk"), page(story, "html", "talk")
    assert f"<summary>{html.escape('calls </details><script> (c1)')}</summary>\n\n````\n" in markdown
    assert "<summary>result of c1</summary>\n\n```\n</pre><script>\n```" in markdown
    assert browser.count("<details>") == browser.count("</details>") == 2
    assert "</pre><script>" in Tags(browser).text


@pytest.mark.parametrize("form", render.FORMS)
def test_notes_for_the_model_are_left_out_and_cut_marks_shown(db: SessionDB, form: render.Form) -> None:
    db.create_session("noted", source="cli")
    said = {"type": "text", "text": "Hello"}
    db.append_message("noted", role="user", content=[content_parts.note("It is Sunday."), said])
    db.append_message("noted", role="assistant", content=[said, content_parts.cut("The answer broke off here.")])
    db.append_message("noted", role="tool", content=[content_parts.note("It is Monday."), said], tool_call_id="c1")
    shown = page(db, form, "noted")
    assert "day" not in shown
    assert shown.count("Hello") == 3
    assert "The answer broke off here." in shown


def test_damaged_message_does_not_hide_the_others(db: SessionDB) -> None:
    conversations.begin(db, "talk", "one", "two")
    backends.drop_triggers(db)
    backends.raw(db, "UPDATE messages SET body = '{broken' WHERE seq = 1")
    text = page(db, "markdown")
    assert "This message cannot be decoded" in text
    assert "\ntwo\n" in text


def test_empty_store_and_conversation_have_pages(db: SessionDB) -> None:
    assert "No conversations" in page(db, "html")
    assert page(db, "markdown") == ""
    db.create_session("talk", source="cli")
    assert "talk · 0 messages · live · from cli" in page(db, "markdown")
    assert render.format_time(1e11 * 9) == "@900000000000"
    with pytest.raises(errors.InvalidArgument, match="markdown, html"):
        db.admin.export_pages(lambda _: None, form="pdf")  # type: ignore[arg-type]
