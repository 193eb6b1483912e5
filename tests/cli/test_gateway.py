"""`holdfast gateway`: access, queues, and a process that starts and stops as systemd expects."""

from __future__ import annotations

import configparser
import json
import os
import re
import signal
import urllib.request
from pathlib import Path

import pytest

from holdfast import SessionDB, types
from holdfast.gateway import gateway, settings
from holdfast.gateway.platforms.http import server
from tests.support import cli_process, documents, gateway_process, polling
from tests.support.cli_process import OFFLINE, Configure, Holdfast
from tests.support.provider_process import hanging_reply, reply, serve

ANN = "matrix:%40ann%3Atest"
PLACE = {"platform": "telegram", "chat": "dm:42", "address": {"chat": 42}}


def test_pairing_code_gives_access_once(holdfast: Holdfast, home: Path) -> None:
    with SessionDB(home / "holdfast.db") as db:
        code = db.contacts.create_pairing_code("telegram", "42", "\x1b[2JAnn\u202e") or ""
    done = holdfast("gateway", "pair", f"{code[:4].lower()}-{code[4:]}")
    assert done.code == 0
    assert "Ann" in done.out
    assert "on telegram has access." in done.out
    assert not {"\x1b", "\u202e"} & {*done.out, *holdfast("gateway", "people").out}
    (found,) = holdfast("gateway", "people", "--json").data["people"]
    assert (found["sender"], found["role"]) == ("42", "user")
    assert holdfast("gateway", "pair", code).sentence.startswith("holdfast: The code is wrong")


def test_people_lists_allowed_and_denied_contacts(holdfast: Holdfast, configure: Configure) -> None:
    assert "as an admin" in holdfast("gateway", "allow", "telegram", "42", "--admin", "--name", "Ann").out
    assert holdfast("gateway", "allow", "telegram", "43", "--json").data["role"] == "user"
    assert holdfast("gateway", "deny", "telegram", "43").out == "43 on telegram is denied access.\n"
    configure("[gateway.allow]\ntelegram = [7]\n[gateway.deny]\ndiscord = ['8']\n")
    rows = [" ".join(line.split()[:3]) for line in holdfast("gateway", "people").out.splitlines()]
    assert rows == ["telegram 7 user", "discord 8 denied", "telegram 42 admin", "telegram 43 denied"]
    assert holdfast("gateway", "deny", "telegram", "43", "--forget").code == 0
    assert holdfast("gateway", "deny", "telegram", "43", "--forget").code == 1
    listed = holdfast("gateway", "people", "--platform", "telegram", "--json").data["people"]
    assert [each["sender"] for each in listed] == ["7", "42"]
    configure("[gateway.deny]\ntelegram = [42]\n")
    done = holdfast("gateway", "allow", "telegram", "42")
    assert done.code == 2
    assert "Remove the sender from `gateway.deny` first" in done.sentence


SENDERS = [
    ("allow telegram @ann", "This is not a sender id of telegram. Your numeric user id"),
    ("deny telegram @ann", "This is not a sender id of telegram."),
    ("deny http nosuch", "This is not a sender id of http. It must be one of: me."),
    ("link http local", "It must be one of: me."),
    ("allow nope 42", "There is no platform 'nope'. Platforms: http, "),
    ("link nope 42", "There is no platform 'nope'."),
    ("allow slack C012", ""),
    ("deny hooks ci", ""),
    ("deny loopback anyone", ""),
    ("link http me", ""),
]


@pytest.mark.parametrize(("line", "refusal"), SENDERS)
def test_sender_ids_are_checked(line: str, refusal: str, home: Path, holdfast: Holdfast, configure: Configure) -> None:
    configure("[gateway.http.tokens]\nme = 'ME'\n[gateway.hooks.ci]\nsecret_env = 'CI'\nto = 'slack:C012'\n")
    done = holdfast("gateway", *line.split())
    assert (done.code, refusal in done.words, (home / "holdfast.db").exists()) == (2 * bool(refusal), True, not refusal)
    assert ("X-Conversation-Id" in done.out) == (line == "link http me")


def test_denied_mail_address_is_stored_in_lower_case(holdfast: Holdfast, home: Path) -> None:
    with SessionDB(home / "holdfast.db") as db:
        db.contacts.deny("email", "Ben@Example.org")
    assert holdfast("gateway", "deny", "email", "Ben@Example.org", "--forget").code == 0
    assert holdfast("gateway", "allow", "email", "ben@example.org").code == 0
    assert holdfast("gateway", "deny", "email", "Ben@Example.org").out == "ben@example.org on email is denied access.\n"
    (found,) = holdfast("gateway", "people", "--json").data["people"]
    assert (found["sender"], found["role"]) == ("ben@example.org", "denied")


def test_links_are_listed_without_chats_that_only_created_a_code(holdfast: Holdfast, home: Path) -> None:
    assert holdfast("gateway", "link").code == 1
    assert not (home / "holdfast.db").exists()
    with SessionDB(home / "holdfast.db") as db:
        for platform, sender, owner in (("matrix", "@ann:test", ANN), ("slack", "U42", ANN), ("http", "local", "")):
            db.contacts.link(platform, sender, owner)
    rows = [" ".join(line.split()) for line in holdfast("gateway", "link").out.splitlines()]
    assert rows == ["http local the terminal", "slack U42 matrix @ann:test"]
    assert [each["owner"] for each in holdfast("gateway", "link", "--json").data["links"]] == ["", ANN]
    assert holdfast("gateway", "link", "matrix", "@ann:test", "--off").code == 0


def test_status_shows_the_queues_and_retry_sends_again(holdfast: Holdfast, home: Path, configure: Configure) -> None:
    configure(
        f"[gateway]\nallow.telegram = [42, 43]\nadmins.telegram = [42]\n[gateway.loopback]\nsocket = '{home}/s.sock'\n"
        "[gateway.telegram]\ntoken_env = 'TOKEN'\n"
    )
    route = "agent:main:telegram:dm:42"
    with SessionDB(home / "holdfast.db") as db:
        new = types.NewInboundMessage(key="1", route=route, sender="42", text="secret", **PLACE)
        arrival, _ = db.mail.add_inbound(new)
        db.mail.begin_inbound(db.mail.acquire_chat_lease(f"route:{route}", holder="a gateway"), arrival.id, "talk")
        lost, waits = (db.mail.post(types.NewOutgoing(text=f"The {each}", **PLACE)) for each in ("lost\x1b[2J", "late"))
        db.mail.mark_failed(lost.id, "Chat not found.")
        db.mail.mark_failed(waits.id, "Too many requests.", waits.at + 60)
        db.contacts.deny("telegram", "42")
        lines = holdfast("gateway", "status").out.splitlines()
        assert lines[0] == "waiting     1 message in 1 chat"
        assert lines[1].startswith(f"              {route}: 1 message since ")
        assert lines[2] == f"running     {route} by a gateway"
        assert re.fullmatch(r"unsent      telegram: 1 message since .*, next attempt .*: Too many requests\.", lines[3])
        assert lines[4] == "failed      1 message; `holdfast gateway failed` lists them"
        assert lines[5] == "              the last, to telegram dm:42: Chat not found."
        assert lines[6].startswith("people      1 allowed, 1 denied;")
        assert lines[7] == f"platforms   loopback at {home}/s.sock: does not answer"
        assert lines[8].startswith("            telegram: configured;")
        found = holdfast("gateway", "status", "--json").data
        assert (found["arrivals_open"], found["routes_waiting"], found["failed"]) == (1, 1, 1)
        assert found["last_error"] == {"id": lost.id, "platform": "telegram", "error": "Chat not found."}
        assert [(each["holder"], each["state"]) for each in found["claims"]] == [("a gateway", "held")]
        assert found["unsent"][0]["error"] == "Too many requests."
        listed = holdfast("gateway", "failed")
        assert "Chat not found." in listed.out
        assert "\x1b" not in listed.out
        assert [each["id"] for each in holdfast("gateway", "failed", "--json").data["failed"]] == [lost.id]
        assert holdfast("gateway", "retry", str(lost.id)).out == "1 message queued again.\n"
        again = holdfast("gateway", "retry", str(lost.id))
        assert (again.code, again.out) == (1, "")
        assert f"Message {lost.id} was already queued again as {waits.id + 1}." in again.err
        assert holdfast("gateway", "retry", "--all") == (0, "", "No failed messages.\n")
        assert holdfast("gateway", "failed").out == ""
        refused = holdfast("gateway", "retry", str(waits.id), "--json")
        assert (refused.code, refused.data["sent"], len(refused.data["refused"])) == (1, [], 1)
        assert [each.text for each in db.mail.due_outgoing("telegram", now=waits.at + 100)] == ["The late"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_process_notifies_systemd_and_stops(tmp_path: Path, configure: Configure, number: int, code: int) -> None:
    configure(gateway_process.SETTINGS)
    with gateway_process.start(tmp_path, "--log-format", "json", WATCHDOG_USEC="200000") as gate:
        assert "offline model" in gate.ask("Hello")
        assert gate.notification() == "WATCHDOG=1"
        left, lines = gate.stop(number)
        while (heard := gate.notification()) == "WATCHDOG=1":
            pass
    assert (left, heard) == (code, "STOPPING=1")
    assert json.loads(lines[-1])["message"] == "the gateway has stopped"
    assert not os.path.exists(gate.path)


def test_systemd_unit_starts_the_gateway_and_waits_for_its_end() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.read(documents.ROOT / "docs" / "operations" / "holdfast-gateway.service", "utf-8")
    program, *words = unit["Service"]["ExecStart"].split()
    assert program.endswith("/holdfast")
    documents.check_command(words)
    assert float(unit["Service"]["WatchdogSec"]) >= 30  # A busy machine is no reason for a restart.
    grace = settings.GatewaySettings().grace + gateway.DRAIN_SECONDS + server.SHUTDOWN_SECONDS
    assert float(unit["Service"]["TimeoutStopSec"]) > grace


def test_default_gateway_logs_the_command_to_reach_it(tmp_path: Path) -> None:
    with gateway_process.start(tmp_path, "--port", "0") as gate:
        line = gate.process.stderr.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert f"curl {address[0]}/v1/chat/completions" in line
        with urllib.request.urlopen(f"{address[0]}/health", timeout=cli_process.PATIENCE) as answer:
            assert json.load(answer)["live"]
        assert gate.stop(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize(
    ("host", "table", "message"),
    [
        ("", "", "is not an address of this machine"),
        ("127.0.0.1", "[gateway.telegram]\ntoken_env = 'MISSING'\n", "the environment variable MISSING is not set"),
        ("127.0.0.1", "[gateway.telegram]\ntoken_env = '1:AAF'\n", "`token_env` must be the name of an environment"),
        ("127.0.0.1", "[gateway.telegram]\n", "gateway.telegram: `token_env` is required."),
    ],
)
def test_gateway_with_invalid_settings_exits_with_2(
    holdfast: Holdfast, configure: Configure, host: str, table: str, message: str
) -> None:
    configure(table)
    done = holdfast("gateway", "--host", host, **OFFLINE)
    assert (done.code, message in done.sentence) == (2, True), done.sentence


def test_second_signal_abandons_turns_that_the_next_process_answers(tmp_path: Path, configure: Configure) -> None:
    configure(gateway_process.SETTINGS.replace("grace = 5", "grace = 3600"))
    with serve(hanging_reply("Well"), reply("All is well.")) as provider:
        with gateway_process.start(tmp_path, **provider.env) as gate, gate.connect() as connection:
            connection.sendall(b'{"text": "Is all well?"}\n')
            polling.until(lambda: len(provider.asked) == 1)
            gate.process.send_signal(signal.SIGTERM)
            assert gate.notification() == "STOPPING=1"
            assert gate.process.poll() is None
            code, lines = gate.stop(signal.SIGTERM)
            assert (code, "turns are abandoned" in "".join(lines)) == (0, True)
        with gateway_process.start(tmp_path, **provider.env) as gate, gate.connect() as connection:
            assert b"All is well." in connection.makefile("rb").readline()
