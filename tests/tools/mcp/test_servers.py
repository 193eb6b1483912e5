"""Servers of tools: what they offer, what becomes of calls, and what they cannot do to us."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from holdfast import errors, types
from holdfast.tools import base, registry
from holdfast.tools.mcp import servers, settings
from tests.support import mcp_servers, polling
from tests.support.agents import LoopClock


async def test_tools_are_called_by_their_server_and_each_call_needs_a_permission(tmp_path: Path) -> None:
    async with mcp_servers.running(mcp_servers.raw(file=tmp_path / "log")) as all_of_them:
        tool = (await mcp_servers.tools(all_of_them))["raw__echo"]
        plan = await tool.run({"text": "a\x1b[2J"})
        assert isinstance(plan, base.Plan)
        # The server says of all its tools that they only read.
        assert plan.act.kind == "reach"
        assert plan.act.summary == 'raw: echo {"text":"a\\u001b[2J"}'
        assert plan.act.detail == ""
        assert not tool.parallel
        refused = await registry.Registry([tool]).run(types.ToolCall("1", "raw__echo", {"text": "a"}))
        assert not refused.ok
        assert "Not allowed" in str(refused.content)
        assert "tools/call" not in (tmp_path / "log").read_text()
        assert await mcp_servers.call(all_of_them, "raw__echo", text="a") == '{"text": "a"}'


async def test_all_that_would_be_sent_is_shown_before_it_is_permitted() -> None:
    async with mcp_servers.running(mcp_servers.raw()) as all_of_them:
        tool = (await mcp_servers.tools(all_of_them))["raw__echo"]
        given = {"text": "a  b\n\u202e\x9b\U000e0041" + "x" * 10_000 + "rm -rf /", "more": [1, {"deep": "last"}]}
        plan = await tool.run(given)
        assert isinstance(plan, base.Plan)
        lines = plan.act.detail.split("\n")
        assert all(len(line) <= servers.MAX_LINE and line.isprintable() for line in lines)
        assert lines[0] == '"echo",'
        # Put together again, it is what will be sent, to the last character.
        assert json.loads("".join(lines[1:])) == given
        # Two spaces would be one in the line that is shown first.
        other = await tool.run({"text": "a  b"})
        assert isinstance(other, base.Plan)
        assert json.loads("".join(other.act.detail.split("\n")[1:])) == {"text": "a  b"}


async def test_results_of_every_kind_become_content() -> None:
    async with mcp_servers.running(mcp_servers.raw()) as all_of_them:
        (picture,) = await mcp_servers.call(all_of_them, "raw__picture")
        assert (picture["type"], picture["media_type"]) == ("image", "image/png")
        text, image, rest = await mcp_servers.call(all_of_them, "raw__odd")
        assert text["text"].startswith("one\ntwo\n[an image was left out: its data are of another type]")
        assert text["text"].endswith("[resource a link: file:///a]\n[resource file:///b]\ninside")
        assert image["type"] == "image"
        assert "application/zip, 3 bytes, left out" in rest["text"]
        assert await mcp_servers.call(all_of_them, "raw__structured") == '{"a":[1,2]}'


async def test_what_goes_wrong_is_a_sentence_for_the_model() -> None:
    async with mcp_servers.running(mcp_servers.raw()) as all_of_them:
        with pytest.raises(errors.ToolFailed, match=r"raw: It broke: badly"):
            await mcp_servers.call(all_of_them, "raw__fail", text="badly")
        with pytest.raises(errors.ToolFailed, match="no answer"):
            await mcp_servers.call(all_of_them, "raw__wrong")


async def test_progress_is_told_and_harmless() -> None:
    heard: list[str] = []
    async with mcp_servers.running(mcp_servers.raw(timeout=30.0)) as all_of_them:
        assert await mcp_servers.call(all_of_them, "raw__progress", heard) == "done"
    assert heard[0] == "raw: 1 of 5 on [2J it"


async def test_signs_of_life_put_off_the_end_of_a_call() -> None:
    class Heard(list[str]):
        def append(self, line: str) -> None:
            super().append(line)
            clock.advance(20.0)

    async with mcp_servers.running(mcp_servers.raw(timeout=50)) as all_of_them:
        clock, heard = LoopClock(), Heard()
        assert await mcp_servers.call(all_of_them, "raw__progress", heard) == "done"
        assert len(heard) == 5  # It takes longer than that.


async def test_however_lively_a_call_is_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers.load_sdk(), "MAX_TIMEOUTS", 0.02)
    async with mcp_servers.running(mcp_servers.raw(timeout=50)) as all_of_them:
        heard: list[str] = []
        with pytest.raises(errors.ToolFailed, match=r"was not done within 1 s; the call was given up"):
            await mcp_servers.call(all_of_them, "raw__lively", heard)
        assert heard
        # The server was told, and goes on with other things.
        assert await mcp_servers.call(all_of_them, "raw__echo") == "{}"


async def test_a_server_is_told_the_workspace_and_nothing_else(tmp_path: Path) -> None:
    async with mcp_servers.running(mcp_servers.raw(), folder=tmp_path) as all_of_them:
        roots = json.loads(await mcp_servers.call(all_of_them, "raw__roots"))
        assert roots == {"roots": [{"uri": tmp_path.as_uri(), "name": "workspace"}]}
        assert json.loads(await mcp_servers.call(all_of_them, "raw__sample"))["code"] < 0
        assert json.loads(await mcp_servers.call(all_of_them, "raw__elicit"))["code"] < 0


async def test_only_the_tools_that_were_chosen_are_taken() -> None:
    async with mcp_servers.running(mcp_servers.raw(tools=frozenset({"echo", "absent"}))) as all_of_them:
        assert list(await mcp_servers.tools(all_of_them)) == ["raw__echo"]


# --- calls that do not come back -----------------------------------------------------------------------


async def test_a_call_that_hangs_is_given_up_and_the_server_told(tmp_path: Path) -> None:
    async with mcp_servers.running(mcp_servers.raw(file=tmp_path / "log", timeout=0.3)) as all_of_them:
        with pytest.raises(errors.ToolFailed, match="no sign of life"):
            await mcp_servers.call(all_of_them, "raw__hang")
        await polling.until_async(lambda: "notifications/cancelled" in (tmp_path / "log").read_text())


async def test_a_cancelled_call_is_cancelled_at_the_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with mcp_servers.running(mcp_servers.raw(file=log)) as all_of_them:
        calling = asyncio.create_task(mcp_servers.call(all_of_them, "raw__hang"))
        await polling.until_async(lambda: log.exists() and '"hang"' in log.read_text())
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await polling.until_async(lambda: "notifications/cancelled" in log.read_text())
        asked, stopped = [
            message
            for message in map(json.loads, log.read_text().splitlines())
            if message["method"] in ("tools/call", "notifications/cancelled")
        ]
        assert stopped["params"]["requestId"] == asked["id"]
        assert await mcp_servers.call(all_of_them, "raw__echo") == "{}"


async def test_a_server_that_dies_in_a_call_is_started_again_by_the_next() -> None:
    async with mcp_servers.running(mcp_servers.raw()) as all_of_them:
        before = (await all_of_them.offer()).tools
        pid = await mcp_servers.call(all_of_them, "raw__pid")
        with pytest.raises(errors.ToolFailed, match="stopped in the middle of the call"):
            await mcp_servers.call(all_of_them, "raw__die")
        assert await mcp_servers.call(all_of_them, "raw__pid") != pid
        # Nothing changed for the model: not a byte of what it is told.
        assert (await all_of_them.offer()).tools is before


async def test_a_server_that_keeps_dying_is_left_alone_for_a_while() -> None:
    now = [1_000.0]
    async with mcp_servers.running(mcp_servers.raw(), clock=lambda: now[0]) as all_of_them:
        for _ in range(servers.MAX_ENDS):
            with pytest.raises(errors.ToolFailed, match="in the middle"):
                await mcp_servers.call(all_of_them, "raw__die")
        await polling.until_async(lambda: all_of_them.servers[0].state == "down")
        with pytest.raises(errors.ToolFailed, match=r"left alone for a while.*exit code 7: I am dying"):
            await mcp_servers.call(all_of_them, "raw__echo")
        now[0] += servers.ENDS_WITHIN_SECONDS + 1
        assert await mcp_servers.call(all_of_them, "raw__echo") == "{}"


async def test_a_server_killed_while_nobody_asks_is_started_again() -> None:
    async with mcp_servers.running(mcp_servers.raw()) as all_of_them:
        os.kill(int(await mcp_servers.call(all_of_them, "raw__pid")), signal.SIGKILL)
        await polling.until_async(lambda: all_of_them.servers[0].state == "down")
        assert "signal 9" in all_of_them.servers[0].why
        assert await mcp_servers.call(all_of_them, "raw__echo") == "{}"


# --- servers that are not there ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (mcp_servers.raw("dies"), "exit code 3: no licence for you"),
        (mcp_servers.raw("junkflood"), "something other than messages"),
        (mcp_servers.raw("longline"), "a line of more than 16 MB"),
        (mcp_servers.raw(command="/no/such/program"), "there is no program '/no/such/program'"),
        (mcp_servers.raw(cwd="/no/such/folder"), "cannot be started"),
        (mcp_servers.raw(missing=("TOKEN",)), "it needs TOKEN in the environment"),
        (settings.ServerConfig(name="raw", url="http://127.0.0.1:9/mcp"), "connection failed"),
    ],
    ids=["dies", "junk", "long line", "no program", "no folder", "no variable", "no address"],
)
async def test_a_server_that_cannot_be_had_is_told_and_stops_nothing(wanted: settings.ServerConfig, told: str) -> None:
    async with mcp_servers.running(wanted) as all_of_them:
        offer = await all_of_them.offer()
        assert offer.tools == ()
        (remark,) = offer.remarks
        assert remark.startswith("The MCP server raw is not available: ")
        assert told in remark


async def test_a_server_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "START_TIMEOUT_SECONDS", 0.2)
    async with mcp_servers.running(mcp_servers.raw("silent")) as all_of_them:
        (remark,) = (await all_of_them.offer()).remarks
        assert "it was not ready within" in remark


def test_one_without_the_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    for name in [name for name in sys.modules if name.startswith("holdfast.tools.mcp.server_connection")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(errors.PartMissing, match=r"pip install 'holdfast\[mcp\]'"):
        servers.load_sdk()


async def test_a_turn_waits_for_a_server_for_a_bounded_time_and_gets_its_tools_later(tmp_path: Path) -> None:
    come = tmp_path / "come"
    async with mcp_servers.running(mcp_servers.raw("late", come), patience=0.05) as all_of_them:
        tools = registry.Registry([], more=all_of_them.offer)
        assert await tools.update() == ["The MCP server raw has not started yet. Its tools are added when it is."]
        assert tools.specs == ()
        assert await tools.update() == []  # It is told once.
        come.touch()
        await all_of_them.wait_started(mcp_servers.PATIENCE)
        assert list(await tools.update()) == ["The MCP server raw is available now, with 19 tools."]
        specs = tools.specs
        assert len(specs) == 19
        assert await tools.update() == []
        assert tools.specs is specs


async def test_lines_that_are_no_messages_are_passed_over() -> None:
    async with mcp_servers.running(mcp_servers.raw("junk")) as all_of_them:
        assert await mcp_servers.call(all_of_them, "raw__echo") == "{}"


# --- hostile servers -----------------------------------------------------------------------------------


async def test_hostile_tools_are_made_harmless_or_left_out() -> None:
    async with mcp_servers.running(mcp_servers.raw("hostile")) as all_of_them:
        offer = await all_of_them.offer()
        names = [tool.spec.name for tool in offer.tools]
        assert len(set(names)) == len(names) == 9
        assert all(name.startswith("raw__") and len(name) <= 64 for name in names)
        assert all(len(tool.spec.description) <= 1_000 for tool in offer.tools)
        assert not any("\x1b" in tool.spec.description or "\u202e" in tool.spec.description for tool in offer.tools)
        (remark,) = offer.remarks
        for name in ("big", "deep", "wrong", "badkey"):
            assert f"{name} (" in remark
        # Each of those that are offered reaches the tool the server meant.
        assert await mcp_servers.call(all_of_them, next(n for n in names if "etc_passwd" in n)) == "{}"


async def test_a_tool_cannot_take_the_name_of_an_own_one() -> None:
    async def mine(_: base.Arguments) -> str:
        return "mine"

    own = base.Tool(types.ToolSpec("raw__echo", "", {"properties": {}}), mine)
    async with mcp_servers.running(mcp_servers.raw()) as all_of_them:
        tools = registry.Registry([own], more=all_of_them.offer)
        await tools.update()
        assert (await tools.run(types.ToolCall("1", "raw__echo", {}))).content == "mine"
        assert [spec.name for spec in tools.specs].count("raw__echo") == 1


async def test_endless_lists_end_and_pages_are_put_together() -> None:
    async with mcp_servers.running(mcp_servers.raw("pages"), mcp_servers.raw("endless", name="more")) as all_of_them:
        offer = await all_of_them.offer()
        assert len(offer.tools) == servers.MAX_TOOLS
        assert sum(tool.spec.name.startswith("raw__") for tool in offer.tools) == 15
        assert any("left out" in remark for remark in offer.remarks)


async def test_a_flood_of_output_is_bounded() -> None:
    heard: list[str] = []
    async with mcp_servers.running(mcp_servers.raw()) as all_of_them:
        assert len(await mcp_servers.call(all_of_them, "raw__flood")) <= 1_000_000
        assert await mcp_servers.call(all_of_them, "raw__storm", heard) == "done"
        assert len(heard) < 5_000
        assert len(await mcp_servers.tools(all_of_them)) == 19


async def test_what_a_server_was_given_in_confidence_is_not_repeated() -> None:
    secret = {"env": {"TOKEN": "s3cret-value"}, "given": (("TOKEN", "s3cret-value"),)}
    async with mcp_servers.running(
        mcp_servers.raw(**secret), mcp_servers.raw("dies", name="dying", **secret)
    ) as all_of_them:
        with pytest.raises(errors.ToolFailed, match=r"cannot use \[redacted\]"):
            await mcp_servers.call(all_of_them, "raw__secret")
        with pytest.raises(errors.ToolFailed, match=r"It broke: \[redacted\]"):
            await mcp_servers.call(all_of_them, "raw__fail", text="s3cret-value")
        assert "no licence for [redacted]" in all_of_them.servers[1].why


async def test_no_result_no_progress_and_no_prompt_holds_a_secret_of_the_server() -> None:
    env = {"TOKEN": "s3cret-value", "PLACE": "/some/folder"}
    async with mcp_servers.running(mcp_servers.raw(env=env, given=tuple(env.items()))) as all_of_them:
        heard: list[str] = []
        text, image, rest = await mcp_servers.call(all_of_them, "raw__leak", heard)
        assert text["text"].startswith("[redacted] in /some/folder\n")
        assert image["type"] == "image"
        said = await all_of_them.text("raw:plain_words", "")
        assert heard == ["raw: 1 with [redacted]"]
        assert said == "Plain words. [redacted]"
        # Nor does the beginning of one, where something was cut.
        assert "s3cr" not in text["text"] + rest["text"]
        assert len(rest["text"]) > 900_000


async def test_it_gets_no_more_of_our_environment_than_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret-value")
    async with mcp_servers.running(mcp_servers.raw()) as all_of_them:
        with pytest.raises(errors.ToolFailed, match="cannot use None"):
            await mcp_servers.call(all_of_them, "raw__secret")


# --- what stays the same, and what changes -------------------------------------------------------------


async def test_what_changed_is_listed_again_at_the_next_turn() -> None:
    async with mcp_servers.running(mcp_servers.raw()) as all_of_them:
        before = (await all_of_them.offer()).tools
        await mcp_servers.call(all_of_them, "raw__change")
        await polling.until_async(lambda: all_of_them.servers[0].stale)
        after = (await all_of_them.offer()).tools
        assert {tool.spec.name for tool in after} - {tool.spec.name for tool in before} == {"raw__added"}


async def test_a_server_made_with_the_library_speaks_the_newest_protocol() -> None:
    kind = settings.ServerConfig(
        name="kind", command=sys.executable, args=(str(mcp_servers.HERE / "mcp_sdk_server.py"),), timeout=30.0
    )
    async with mcp_servers.running(kind) as all_of_them:
        assert await mcp_servers.call(all_of_them, "kind__add", a=1, b=2) == "3"
        with pytest.raises(errors.ToolFailed, match="kind: "):
            await mcp_servers.call(all_of_them, "kind__broken")
        await mcp_servers.call(all_of_them, "kind__grow")
        await polling.until_async(lambda: all_of_them.servers[0].stale)
        assert "kind__extra" in await mcp_servers.tools(all_of_them)
        assert await all_of_them.text("kind:review", "x = 1; y = 2") == "Review this: x = 1; y = 2"


# --- prompts -------------------------------------------------------------------------------------------


async def test_prompts_are_commands_that_stand_for_words() -> None:
    async with mcp_servers.running(mcp_servers.raw()) as all_of_them:
        await all_of_them.offer()
        greet, plain = all_of_them.listed()
        assert (greet.name, greet.argument) == ("raw:greet", "who=… [how=…]")
        assert plain.name == "raw:plain_words"
        said = "Greet Ann with care.\n\n[assistant] Hello."
        assert await all_of_them.text("raw:greet", "who=Ann how='with care'") == said
        assert (await all_of_them.text("raw:greet", "Ann B.") or "").startswith("Greet Ann B. kindly.")
        assert await all_of_them.text("raw:plain_words", "") == "Plain words."
        assert await all_of_them.text("raw:nothing", "") is None
        for name, argument in (("raw:greet", ""), ("raw:greet", "how=x"), ("raw:plain_words", "x")):
            with pytest.raises(errors.ToolFailed):
                await all_of_them.text(name, argument)
