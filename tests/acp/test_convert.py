"""Between the protocol's values and ours: nothing that came along gets out of its fences, and no answer is a yes by
chance."""

from __future__ import annotations

import json
from typing import Any

import pytest
from acp import schema
from hypothesis import given
from hypothesis import strategies as some

from holdfast import errors, events, types
from holdfast.acp import conversion
from holdfast.runtime import attachments


def text(words: str) -> schema.TextContentBlock:
    return schema.TextContentBlock(type="text", text=words)


def resource(words: str, uri: str = "file:///a/b.txt") -> schema.EmbeddedResourceContentBlock:
    return schema.EmbeddedResourceContentBlock(
        type="resource", resource=schema.TextResourceContents(uri=uri, text=words)
    )


@given(some.text(alphabet="`a\n ", max_size=60))
def test_for_any_text_its_fences_are_longer_than_those_in_it(words: str) -> None:
    first, *inner, last = conversion.fence(words).split("\n")
    assert first == last
    assert set(first) == {"`"}
    assert not any(line.strip().startswith(first) for line in inner)


def test_what_was_typed_is_told_from_what_came_along() -> None:
    said = conversion.parse_prompt([text("Look at "), resource("secret plan"), text(" please")])
    assert said.text == "Look at @b.txt please"
    assert conversion.parse_prompt([text("Look at"), resource("x"), text("please")]).text == "Look at @b.txt please"
    assert not said.is_plain
    assert [
        conversion.text_part(each).get("resource") for each in said.pieces if isinstance(each, conversion.TextPiece)
    ] == [
        None,
        {"uri": "file:///a/b.txt", "name": "b.txt"},
        None,
    ]


@given(some.text(alphabet="`a\n\r\t ", max_size=60))
def test_for_any_text_that_came_along_it_is_kept_and_comes_back_to_the_letter(words: str) -> None:
    (piece,) = conversion.parse_prompt([resource(words)]).pieces
    assert isinstance(piece, conversion.TextPiece)
    assert f"\n{words}\n" in piece.text
    assert conversion.content_blocks([conversion.text_part(piece)]) == [resource(words)]


def test_what_came_along_and_was_kept_without_its_last_lines_still_comes_back() -> None:
    kept = {"uri": "file:///a/b.txt", "name": "b.txt"}
    stored = {"type": "text", "text": "\n\nfile:///a/b.txt\n````\none\n```\n````\n\n", "resource": kept}
    assert conversion.content_blocks([stored]) == [resource("one\n```")]


def test_a_file_that_is_no_text_is_named() -> None:
    blob = schema.BlobResourceContents(uri="file:///a.bin", blob="AAAA", mime_type="application/octet-stream")
    said = conversion.parse_prompt([schema.EmbeddedResourceContentBlock(type="resource", resource=blob)])
    (piece,) = said.pieces
    assert isinstance(piece, conversion.TextPiece)
    assert "file:///a.bin" in piece.text


def test_a_picture_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "MAX_IMAGE_BYTES", 2)
    with pytest.raises(errors.RpcRefused, match="bytes"):
        conversion.parse_prompt([schema.ImageContentBlock(type="image", data="AAAA", mime_type="image/png")])


@pytest.mark.parametrize(
    ("tool", "arguments", "title", "kind"),
    [
        ("shell", {"command": "make\ttest\nnow"}, "make test now", "execute"),
        ("read_file", {"path": "a.py"}, "Read a.py", "read"),
        ("edit_file", {"path": "a.py", "old": "x"}, "Edit a.py", "edit"),
        ("search_files", {"pattern": "x"}, "Search x", "search"),
        ("github__issues", {"query": "x"}, "github__issues x", "other"),
        ("anything", {}, "anything", "other"),
        ("shell", {"command": "x" * 1000}, "x" * 159 + "…", "execute"),
        ("shell", {"command": 7}, "shell", "execute"),
    ],
)
def test_a_call_has_a_title_of_one_line_and_a_kind(tool: str, arguments: dict[str, Any], title: str, kind: str) -> None:
    assert conversion.call_title(tool, arguments) == title
    assert conversion.tool_kind(tool) == kind


@pytest.mark.parametrize("given", ["", "{", "[1]", "7", "null"])
def test_arguments_that_cannot_be_read_are_none(given: str) -> None:
    assert conversion.parse_arguments(given) == {}


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else "the end"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ('{"path": "a\\ud800b"}', {"path": "a\ufffdb"}),
        ('{"\\ud83d": [{"\\ude00": "\\ud83d\\ude00"}]}', {"\ufffd": [{"\ufffd": "\U0001f600"}]}),
        ({"path": "a\ud800b"}, {"path": "a\ufffdb"}),
        ({"x": nested(99)}, {"x": nested(99)}),
    ],
)
def test_arguments_are_told_without_halves_of_characters(given: Any, told: dict[str, Any]) -> None:
    assert conversion.parse_arguments(given) == told


@pytest.mark.parametrize("depth", [100, 300, 900])
def test_of_arguments_that_are_too_deep_the_rest_is_told(depth: int) -> None:
    told = conversion.parse_arguments(json.dumps({"command": "ls", "x": nested(depth)}))
    assert told["command"] == "ls"
    assert "the end" not in str(told)
    assert str(told).count("[") == 99


def chosen(option: str) -> schema.RequestPermissionResponse:
    return schema.RequestPermissionResponse(outcome=schema.AllowedOutcome(outcome="selected", option_id=option))


def offered(option: str) -> schema.PermissionOption:
    return schema.PermissionOption(option_id=option, name=option, kind="allow_once")


def test_an_option_that_was_not_offered_is_no_answer() -> None:
    with pytest.raises(ValueError, match="was not offered"):
        conversion.parse_choice(chosen("always"), [offered("once")])


@given(some.text(max_size=20))
def test_for_any_answer_only_the_ways_to_say_yes_are_a_yes(option: str) -> None:
    answered = conversion.parse_choice(chosen(option), [offered(option)])
    assert answered == (option if option in ("once", "conversation", "always") else "deny")


def test_every_choice_means_what_it_says() -> None:
    asked = events.ApprovalAsked("r", "c", "shell", "Run it.", remembers="shell(make test)")
    for each in conversion.permission_options(asked):
        answered = conversion.parse_choice(chosen(each.option_id), [each])
        assert (answered == "deny") == (each.kind == "reject_once")
        assert (answered in ("conversation", "always")) == (each.kind == "allow_always")


@pytest.mark.parametrize("number", [1, 20])
def test_every_rule_that_would_be_remembered_is_shown(number: int) -> None:
    rules = [f"shell(make target-{each} *)" for each in range(number)]
    asked = events.ApprovalAsked("r", "c", "shell", "Run it.", remembers=", ".join(rules))
    shown = str([*conversion.permission_options(asked), *conversion.approval_content(asked)])
    assert [each for each in rules if each not in shown] == []


def result(reason: events.Exit, **more: Any) -> events.TurnResult:
    plain = {"failed": False, "partial": False, "completed": reason == "completed", "error": None} | more
    return events.TurnResult(
        final_response="",
        messages=(),
        api_calls=1,
        interrupted=reason == "interrupted",
        exit_reason=reason,
        usage=types.Usage(),
        session_id="s",
        conversation_id="s",
        **plain,
    )


@pytest.mark.parametrize(
    ("ended", "stop"),
    [
        (result("completed"), "end_turn"),
        (result("completed", partial=True), "max_tokens"),
        (result("interrupted"), "cancelled"),
        (result("steps"), "max_turn_requests"),
        (result("cost"), "max_turn_requests"),
    ],
)
def test_a_turn_that_did_not_fail_has_a_reason_for_its_end(ended: events.TurnResult, stop: str) -> None:
    assert conversion.stop_reason(ended) == stop


@pytest.mark.parametrize("reason", ["overflow", "model", "cut", "lease_lost", "busy", "store", "failed"])
def test_a_turn_that_failed_is_an_error_with_its_sentence(reason: events.Exit) -> None:
    with pytest.raises(errors.RpcRefused, match="It went wrong") as caught:
        conversion.stop_reason(result(reason, failed=True, error="It went wrong."))
    assert caught.value.code == -32603
