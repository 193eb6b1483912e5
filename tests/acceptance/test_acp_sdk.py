"""The official TypeScript SDK of the protocol drives the real program.

Every frame is checked against the schemas of the package: strictly against the unstable one, loosely against the stable
one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast import SessionDB, content_parts
from tests.acceptance import npm
from tests.support import acp_schema, cli_process, provider_process

SDK = ("@agentclientprotocol/sdk", "2.4.0")
SERVER = ("@modelcontextprotocol/server-filesystem", "2026.8.31")
TRIES = 10
SCRIPT = Path(__file__).parent / "acp_client.mjs"
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="

Seen = dict[str, Any]


@pytest.fixture(scope="module")
def sdk() -> tuple[npm.Node, Path]:
    return npm.installed(*SDK)


def run_scenario(
    sdk: tuple[npm.Node, Path], home: Path, story: str, env: Mapping[str, str] | None = None, **given: Any
) -> Seen:
    """Run a scenario and return the frames the client saw, after checking them."""
    node, package = sdk
    # A fork is not stable yet.
    kind = "unstable" if story == "lives" else "stable"
    entry = package / "dist" / "v1" / kind / "acp.js"
    command = [*node.node, SCRIPT, entry, story, json.dumps(given), *cli_process.PROGRAM, "acp"]
    seen = npm.run_script(home, *command, env=env)
    assert (seen["strange"], seen["code"]) == ([], 0)
    check_frames(seen, acp_schema.Wire(load_protocol(package, "unstable")))
    if kind == "stable":
        check_frames(seen, acp_schema.Wire(load_protocol(package, "stable")))
    with SessionDB(home / "data" / "holdfast.db") as db:
        assert db.admin.fsck().ok
    return seen


def load_protocol(package: Path, kind: str) -> acp_schema.Protocol:
    file = package / "schema" / "v1" / ("schema.json" if kind == "stable" else "schema.unstable.json")
    return acp_schema.Protocol(json.loads(file.read_text("utf-8")), lenient=kind == "stable")


def check_frames(seen: Seen, wire: acp_schema.Wire) -> None:
    for frame in seen["frames"]:
        if "sent" in frame:
            wire.sent(frame["sent"])
        else:
            wire.got(frame["got"])
    assert wire.open_calls(seen["session"]) == set()


def updates(seen: Seen, kind: str | None = None) -> list[acp_schema.Frame]:
    updates = [frame["got"]["params"]["update"] for frame in got(seen, "session/update")]
    return [each for each in updates if kind in (None, each["sessionUpdate"])]


def got(seen: Seen, method: str) -> list[acp_schema.Frame]:
    return [frame for frame in seen["frames"] if frame.get("got", {}).get("method") == method]


def chunk_text(updates: list[acp_schema.Frame], kind: str) -> str:
    return "".join(each["content"].get("text", "") for each in updates if each["sessionUpdate"] == kind)


def test_vendored_schema_is_the_published_one(sdk: tuple[npm.Node, Path]) -> None:
    whole = json.loads((sdk[1] / "schema" / "v1" / "schema.unstable.json").read_text("utf-8"))
    kept = json.loads(acp_schema.VENDORED.read_text("utf-8"))
    assert kept == {"$comment": acp_schema.SOURCE} | acp_schema.bare(whole)
    assert "Apache License" in (sdk[1] / "LICENSE").read_text("utf-8")


def test_conversation_with_attachments_is_loaded_by_another_process(sdk: tuple[npm.Node, Path], tmp_path: Path) -> None:
    seen = run_scenario(sdk, tmp_path, "talk", picture=PICTURE)
    notes = seen["notes"]
    assert seen["initialized"]["agentInfo"]["name"] == "holdfast"
    assert {each["id"] for each in notes["opened"]["modes"]["availableModes"]} == {"ask", "code", "read-only"}
    assert notes["stops"] == ["end_turn"] * 6
    commands = {each["name"] for each in updates(seen, "available_commands_update")[0]["availableCommands"]}
    assert {"compact", "undo", "status", "search"} <= commands
    assert {path.name for path in tmp_path.glob("*.txt")} == {"once.txt", "always.txt"}
    assert len(got(seen, "session/request_permission")) == 3
    assert [each["sessionId"] for each in notes["list"]["sessions"]] == [seen["session"]]
    assert notes["unknown"] == {"load": -32002, "prompt": -32002, "method": -32601}
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        kept = json.dumps([each.content for each in db.transcript(seen["session"])], default=str)
    assert all(words in kept for words in ("Hello there", "# The plan", "notes.txt", "touch never.txt"))
    again = run_scenario(sdk, tmp_path, "load", sessionId=seen["session"])
    replayed = updates(again)[: again["notes"]["replayed"]]
    assert again["notes"]["after"] == "end_turn"
    assert "Hello there" in chunk_text(replayed, "user_message_chunk")
    assert chunk_text(replayed, "agent_message_chunk") == chunk_text(updates(seen), "agent_message_chunk")
    replayed_calls = {each["toolCallId"] for each in replayed if each["sessionUpdate"] == "tool_call"}
    assert replayed_calls == {each["toolCallId"] for each in updates(seen, "tool_call")}


def test_mode_controls_permission_requests_and_model_is_an_option(sdk: tuple[npm.Node, Path], tmp_path: Path) -> None:
    notes = run_scenario(sdk, tmp_path, "modes")["notes"]
    assert notes["ask"] == 1
    assert notes["read-only"] == 0
    assert not (tmp_path / "mode-read-only.txt").exists()
    assert (tmp_path / "mode-ask.txt").exists()
    assert (tmp_path / "mode-code.txt").exists()
    assert notes["wrong"] == -32602
    assert any(option["id"] == "model" for each in notes["options"] for option in each["configOptions"])


def test_turn_is_cancelled_in_a_tool_and_in_a_permission_request(sdk: tuple[npm.Node, Path], tmp_path: Path) -> None:
    seen = run_scenario(sdk, tmp_path, "cancel")
    assert seen["notes"] == {"tool": "cancelled", "question": "cancelled", "after": "end_turn"}


def test_compacted_session_is_loaded_with_its_whole_transcript(sdk: tuple[npm.Node, Path], tmp_path: Path) -> None:
    first = run_scenario(sdk, tmp_path, "compact")
    assert first["notes"]["compacted"] == "end_turn"
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        assert len(db.compactions(first["session"])) == 1
    again = run_scenario(sdk, tmp_path, "load", sessionId=first["session"])
    replayed = updates(again)[: again["notes"]["replayed"]]
    asked = chunk_text(replayed, "user_message_chunk")
    assert all(f"The harbour of {number} has" in asked for number in range(1, 13))
    assert asked.rstrip().endswith("And a last word.")
    assert again["notes"]["after"] == "end_turn"


def test_session_is_forked_closed_and_resumed(sdk: tuple[npm.Node, Path], tmp_path: Path) -> None:
    seen = run_scenario(sdk, tmp_path, "lives")
    notes = seen["notes"]
    assert notes["fork"] != seen["session"]
    lists = [[(each["sessionId"], each["cwd"]) for each in one["sessions"]] for one in notes["lists"]]
    assert lists == [[(seen["session"], str(tmp_path))], [(notes["fork"], str(tmp_path / "aside"))], []]
    assert (notes["gone"], notes["silent"], notes["after"]) == (-32002, True, "end_turn")
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        bodies = {
            session: [content_parts.text(each.content) for each in db.transcript(session) if each.role == "user"]
            for session in (seen["session"], notes["fork"])
        }
    assert bodies[seen["session"]] == ["Hello there", "Hello again"]
    assert bodies[notes["fork"]] == ["Hello there", "Only in the fork"]


def test_files_terminals_and_mcp_servers_of_the_editor_are_used(sdk: tuple[npm.Node, Path], tmp_path: Path) -> None:
    node, server = npm.installed(*SERVER)
    command, *arguments = [*node.node, str(server / "dist" / "index.js"), str(tmp_path)]
    brought = {"name": "disk", "command": command, "args": arguments, "env": []}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "config.toml").write_text("[memory]\nreview = false\n")
    (tmp_path / "notes.txt").write_text("What was saved.\n")
    calls = {
        "read_file": {"path": "notes.txt"},
        "edit_file": {"path": "notes.txt", "old_text": "not saved yet", "new_text": "saved now"},
        "shell": {"command": "echo from the terminal"},
    }
    answers = [provider_process.tool_call(name, json.dumps(given)) for name, given in calls.items()]
    listing = provider_process.tool_call("disk__list_directory", json.dumps({"path": str(tmp_path)}))
    script = [*answers, provider_process.reply("Done."), *[listing, provider_process.reply("Listed.")] * TRIES]
    with provider_process.serve(*script) as played:
        seen = run_scenario(sdk, tmp_path, "hands", played.env, mcpServers=[brought], tries=TRIES)
    assert seen["notes"]["stop"] == "end_turn"
    assert (tmp_path / "notes.txt").read_text() == "What is saved now.\n"
    methods = {frame["got"]["method"] for frame in seen["frames"] if "method" in frame.get("got", {})}
    assert {"fs/read_text_file", "fs/write_text_file", "terminal/create", "terminal/release"} <= methods
    shown = [content for each in updates(seen) for content in each.get("content") or () if isinstance(content, dict)]
    *_, difference = (each for each in shown if each.get("type") == "diff")
    assert (difference["oldText"], difference["newText"]) == ("What is not saved yet.", "What is saved now.")
    assert {"terminal-1"} == {each["terminalId"] for each in shown if each.get("type") == "terminal"}
    sent = json.dumps([json.loads(each.body)["messages"][-1] for each in played.asked])
    assert all(words in sent for words in ("What is not saved yet.", "from the terminal", "[FILE] notes.txt"))
