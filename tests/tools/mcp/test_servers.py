"""MCP servers: their tools, calls and prompts, and the limits of a hostile server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, errors, events, types
from holdfast.model import ScriptedModel
from holdfast.tools import base, registry
from holdfast.tools.mcp import servers, settings
from tests.support import agents
from tests.support.mcp_servers import HERE, PATIENCE, call, raw, running, tools
from tests.support.polling import cancel, start, until_async


async def plan(started: servers.McpServers, name: str, **arguments: object) -> base.Act:
    return (await (await tools(started))[name].run(arguments)).act


async def test_each_call_of_a_tool_needs_approval(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with running(raw(file=log, tools=frozenset({"echo", "absent"}))) as started:
        (tool,) = (await started.offer()).tools
        act = await plan(started, "raw__echo", text="a\x1b[2J")
        # The server calls all its tools read-only.
        assert (act.kind, act.summary, act.detail) == ("reach", 'raw: echo {"text":"a\\u001b[2J"}', "")
        assert not tool.parallel
        refused = await registry.Registry([tool]).run(types.ToolCall("1", "raw__echo", {"text": "a"}))
        assert "Not allowed" in str(refused.content)
        assert "tools/call" not in log.read_text()
        assert await call(started, "raw__echo", text="a") == '{"text": "a"}'


async def test_approval_shows_everything_that_would_be_sent(shared: servers.McpServers) -> None:
    given = {"text": "a  b\n\u202e\x9b\U000e0041" + "x" * 10_000 + "rm -rf /", "more": [1, {"deep": "last"}]}
    lines = (await plan(shared, "raw__echo", **given)).detail.split("\n")
    assert all(len(line) <= servers.MAX_LINE and line.isprintable() for line in lines)
    assert lines[0] == '"echo",'
    assert json.loads("".join(lines[1:])) == given
    # The summary would show two spaces as one.
    lines = (await plan(shared, "raw__echo", text="a  b")).detail.split("\n")
    assert json.loads("".join(lines[1:])) == {"text": "a  b"}


async def test_results_of_every_kind_become_content(shared: servers.McpServers) -> None:
    (picture,) = await call(shared, "raw__picture")
    assert (picture["type"], picture["media_type"]) == ("image", "image/png")
    text, image, rest = await call(shared, "raw__odd")
    assert text["text"].startswith("one\ntwo\n[an image was left out: its data are of another type]")
    assert text["text"].endswith("[resource a link: file:///a]\n[resource file:///b]\ninside")
    assert image["type"] == "image"
    assert "application/zip, 3 bytes, left out" in rest["text"]
    assert await call(shared, "raw__structured") == '{"a":[1,2]}'
    with pytest.raises(errors.ToolFailed, match=r"raw: It broke: badly"):
        await call(shared, "raw__fail", text="badly")
    with pytest.raises(errors.ToolFailed, match="no answer"):
        await call(shared, "raw__wrong")


async def test_progress_is_shown_and_extends_the_timeout() -> None:
    class Progress(list[str]):
        def append(self, line: str) -> None:
            super().append(line)
            clock.advance(20.0)

    async with running(raw(timeout=50)) as started:
        await started.offer()
        clock, shown = agents.LoopClock(), Progress()
        assert await call(started, "raw__progress", shown) == "done"
        assert shown[0] == "raw: 1 of 5 on [2J it"
        assert len(shown) == 5  # That takes longer than the timeout.


async def test_call_with_endless_progress_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers.load_sdk(), "MAX_TIMEOUTS", 0.02)
    async with running(raw("junk", timeout=50)) as started:  # Lines that are not messages are skipped.
        shown: list[str] = []
        with pytest.raises(errors.ToolFailed, match=r"was not done within 1 s; the call was given up"):
            await call(started, "raw__lively", shown)
        assert shown
        assert await call(started, "raw__echo") == "{}"


async def test_server_is_given_the_workspace_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret-value")
    async with running(raw(), folder=tmp_path) as started:
        roots = json.loads(await call(started, "raw__roots"))
        assert roots == {"roots": [{"uri": tmp_path.as_uri(), "name": "workspace"}]}
        assert json.loads(await call(started, "raw__sample"))["code"] < 0
        assert json.loads(await call(started, "raw__elicit"))["code"] < 0
        with pytest.raises(errors.ToolFailed, match="cannot use None"):
            await call(started, "raw__secret")


# --- calls that do not return ----------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0.2, 30.0], ids=["timeout", "cancelled"])
async def test_abandoned_call_is_cancelled_at_the_server(tmp_path: Path, timeout: float) -> None:
    log = tmp_path / "log"
    async with running(raw(file=log, timeout=timeout)) as started:
        task = await start(call(started, "raw__hang"), lambda: log.exists() and '"hang"' in log.read_text())
        if timeout > 1:
            await cancel(task)
        else:
            with pytest.raises(errors.ToolFailed, match="no sign of life"):
                await task
        await until_async(lambda: "notifications/cancelled" in log.read_text())
        messages = list(map(json.loads, log.read_text().splitlines()))
        (asked,) = [each for each in messages if each["method"] == "tools/call"]
        (stopped,) = [each for each in messages if each["method"] == "notifications/cancelled"]
        assert stopped["params"]["requestId"] == asked["id"]


async def test_dead_server_is_started_again_by_the_next_call() -> None:
    async with running(raw()) as plain:
        before = (await plain.offer()).tools
        pid = await call(plain, "raw__pid")
        with pytest.raises(errors.ToolFailed, match="stopped in the middle of the call"):
            await call(plain, "raw__die")
        after = await call(plain, "raw__pid")
        assert after != pid
        os.kill(int(after), signal.SIGKILL)
        await until_async(lambda: plain.servers[0].state == "down")
        assert "signal 9" in plain.servers[0].why
        assert await call(plain, "raw__echo") == "{}"
        assert (await plain.offer()).tools is before


async def test_server_that_keeps_dying_is_left_alone_for_a_while() -> None:
    now = [1_000.0]
    async with running(raw(), clock=lambda: now[0]) as started:
        for _ in range(servers.MAX_ENDS):
            with pytest.raises(errors.ToolFailed, match="in the middle"):
                await call(started, "raw__die")
        await until_async(lambda: started.servers[0].state == "down")
        with pytest.raises(errors.ToolFailed, match=r"left alone for a while.*exit code 7: I am dying"):
            await call(started, "raw__echo")
        now[0] += servers.ENDS_WITHIN_SECONDS + 1
        assert await call(started, "raw__echo") == "{}"


async def test_turn_that_waits_for_a_server_can_be_interrupted(db: AsyncSessionDB) -> None:
    begun = asyncio.Event()

    def emit(event: events.AnyEvent) -> None:
        if isinstance(event, events.TurnStarted):
            begun.set()

    async with running(raw("silent")) as started:
        agent = agents.agent(db, ScriptedModel(["a"]), session_id="here", tool_source=started.offer)
        turn = asyncio.create_task(agent.run_conversation("hi", emit=emit))
        await begun.wait()
        agent.interrupt()
        assert (await turn).interrupted


# --- servers that are not available --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (raw("dies"), "exit code 3: no licence for you"),
        (raw("junkflood"), "something other than messages"),
        (raw("longline"), "a line of more than 16 MB"),
        (raw("silent"), "it was not ready within"),
        (raw(command="/no/such/program"), "there is no program '/no/such/program'"),
        (raw(cwd="/no/such/folder"), "cannot be started"),
        (raw(missing=("TOKEN",)), "it needs TOKEN in the environment"),
        (settings.ServerConfig(name="raw", url="http://127.0.0.1:9/mcp"), "connection failed"),
    ],
    ids=["dies", "junk", "long line", "silent", "no program", "no folder", "no variable", "no address"],
)
async def test_unavailable_server_is_reported_and_stops_nothing(config: settings.ServerConfig, reason: str) -> None:
    async with running(config, patience=1e6) as started:
        offer = await (agents.LoopClock().finish(started.offer()) if "silent" in config.args else started.offer())
        assert offer.tools == ()
        (remark,) = offer.remarks
        assert remark.startswith("The MCP server raw is not available: ")
        assert reason in remark


def test_missing_sdk_is_reported_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    for name in [name for name in sys.modules if name.startswith("holdfast.tools.mcp.server_connection")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(errors.PartMissing, match=r"pip install .*\[mcp\]"):
        servers.load_sdk()


async def test_tools_of_a_late_server_are_added_later(tmp_path: Path) -> None:
    come = tmp_path / "come"
    async with running(raw("late", come), patience=0.05) as started:
        registered = registry.Registry([], more=started.offer)
        assert await registered.update() == ["The MCP server raw has not started yet. Its tools are added when it is."]
        assert registered.specs == ()
        assert await registered.update() == []
        come.touch()
        await started.wait_started(PATIENCE)
        assert list(await registered.update()) == ["The MCP server raw is available now, with 18 tools."]
        specs = registered.specs
        assert len(specs) == 18
        assert await registered.update() == []
        assert registered.specs is specs


# --- hostile servers -----------------------------------------------------------------------------------


async def test_hostile_tools_are_made_harmless_or_left_out() -> None:
    async with running(raw("hostile")) as started:
        offer = await started.offer()
        names = [tool.spec.name for tool in offer.tools]
        assert len(set(names)) == len(names) == 5
        assert all(name.startswith("raw__") and len(name) <= 64 for name in names)
        assert all(len(tool.spec.description) <= 1_000 for tool in offer.tools)
        assert not any("\x1b" in tool.spec.description or "\u202e" in tool.spec.description for tool in offer.tools)
        (remark,) = offer.remarks
        assert "wrong (" in remark
        assert await call(started, next(name for name in names if "etc_passwd" in name)) == "{}"


async def test_tool_cannot_replace_another_with_the_same_name(shared: servers.McpServers) -> None:
    async def run(_: base.Arguments) -> str:
        return "mine"

    own = base.Tool(types.ToolSpec("raw__echo", "", {"properties": {}}), run)
    registered = registry.Registry([own], more=shared.offer)
    await registered.update()
    assert (await registered.run(types.ToolCall("1", "raw__echo", {}))).content == "mine"
    assert [spec.name for spec in registered.specs].count("raw__echo") == 1


async def test_number_of_tools_and_length_of_output_are_limited(shared: servers.McpServers) -> None:
    async with running(raw("pages"), raw("endless", name="more")) as started:
        offer = await started.offer()
        assert len(offer.tools) == servers.MAX_TOOLS
        assert sum(tool.spec.name.startswith("raw__") for tool in offer.tools) == 15
        assert any("left out" in remark for remark in offer.remarks)
    shown: list[str] = []
    assert len(await call(shared, "raw__flood")) <= 1_000_000
    assert await call(shared, "raw__storm", shown) == "done"
    assert len(shown) < 5_000


async def test_secrets_of_a_server_are_redacted_everywhere() -> None:
    env = {"TOKEN": "s3cret-value", "PLACE": "/some/folder"}
    given: dict[str, Any] = {"env": env, "given": tuple(env.items())}
    async with running(raw(**given), raw("dies", name="dying", **given)) as started:
        with pytest.raises(errors.ToolFailed, match=r"cannot use \[redacted\]"):
            await call(started, "raw__secret")
        with pytest.raises(errors.ToolFailed, match=r"It broke: \[redacted\]"):
            await call(started, "raw__fail", text="s3cret-value")
        assert "no licence for [redacted]" in started.servers[1].why
        shown: list[str] = []
        text, image, rest = await call(started, "raw__leak", shown)
        assert text["text"].startswith("[redacted] in /some/folder\n")
        assert image["type"] == "image"
        assert shown == ["raw: 1 with [redacted]"]
        assert await started.text("raw:plain_words", "") == "Plain words. [redacted]"
        # Nor is the beginning of a secret shown where a text was cut.
        assert "s3cr" not in text["text"] + rest["text"]
        assert len(rest["text"]) > 900_000


# --- changes and prompts -------------------------------------------------------------------------------


async def test_server_of_the_sdk_speaks_the_newest_protocol_and_may_change_its_tools() -> None:
    script = str(HERE / "mcp_sdk_server.py")
    config = settings.ServerConfig(name="kind", command=sys.executable, args=(script,), timeout=30.0)
    async with running(config) as started:
        before = (await started.offer()).tools
        assert await call(started, "kind__add", a=1, b=2) == "3"
        await call(started, "kind__grow")
        await until_async(lambda: started.servers[0].stale)
        after = (await started.offer()).tools
        assert {tool.spec.name for tool in after} - {tool.spec.name for tool in before} == {"kind__extra"}
        assert await started.text("kind:review", "x = 1; y = 2") == "Review this: x = 1; y = 2"


async def test_prompts_are_commands_with_arguments(shared: servers.McpServers) -> None:
    greet, plain_words = shared.listed()
    assert (greet.name, greet.argument) == ("raw:greet", "who=… [how=…]")
    assert plain_words.name == "raw:plain_words"
    answer = "Greet Ann with care.\n\n[assistant] Hello."
    assert await shared.text("raw:greet", "who=Ann how='with care'") == answer
    assert (await shared.text("raw:greet", "Ann B.") or "").startswith("Greet Ann B. kindly.")
    assert await shared.text("raw:plain_words", "") == "Plain words."
    assert await shared.text("raw:nothing", "") is None
    for name, argument in (("raw:greet", ""), ("raw:greet", "'x"), ("raw:plain_words", "x")):
        with pytest.raises(errors.ToolFailed):
            await shared.text(name, argument)
