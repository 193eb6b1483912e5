"""`holdfast gateway`: who is let in, what is said of it, and a process that stops as it is asked to."""

from __future__ import annotations

import configparser
import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import SessionDB, types
from holdfast.cli import gateway_queues
from holdfast.gateway import gateway, settings
from holdfast.gateway.platforms.http import server
from holdfast.store.mail import contacts, queue_status
from tests import test_guide
from tests.support import cli_process, polling, provider_process

Holdfast = Callable[..., cli_process.Run]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir(mode=0o700)
    return tmp_path


def said(home: Path, text: str) -> None:
    (home / "data" / "config.toml").write_text(text, "utf-8")


def asked(home: Path, sender: str = "42", platform: str = "telegram", name: str = "Ann") -> str:
    with SessionDB(home / "data" / "holdfast.db") as db:
        code = db.contacts.create_pairing_code(platform, sender, name)
    assert code is not None
    return code


# --- people ------------------------------------------------------------------------------------------


def test_a_code_lets_in_whoever_was_given_it_however_it_is_typed(holdfast: Holdfast, home: Path) -> None:
    code = asked(home)
    done = holdfast("gateway", "pair", f"{code[:4].lower()}-{code[4:]}")
    assert (done.code, done.out) == (0, "42 (Ann) on telegram has access.\n")
    (found,) = holdfast("gateway", "people", "--json").data["people"]
    assert (found["sender"], found["role"], found["name"]) == ("42", "user", "Ann")
    assert holdfast("gateway", "pair", code).sentence.startswith("holdfast: The pairing code is wrong")


def test_guessing_codes_is_stopped_though_each_guess_is_a_process(home: Path, holdfast: Holdfast) -> None:
    code = asked(home)
    for guess in range(contacts.MAX_FAILURES - 1):
        assert holdfast("gateway", "pair", f"WRONG{guess}").code == 1
    # The last one in a process of its own, whatever the others were.
    assert "Try again in 60 minutes" in cli_process.run(home, "gateway", "pair", "WRONG").sentence
    done = holdfast("gateway", "pair", code)
    assert done.code == 1
    assert "Too many wrong pairing codes" in done.sentence
    assert holdfast("gateway", "people", "--json").data == {"people": []}


def test_who_is_allowed_denied_and_forgotten_is_listed_so(holdfast: Holdfast, home: Path) -> None:
    assert "as an admin" in holdfast("gateway", "allow", "telegram", "42", "--admin", "--name", "Ann").out
    assert holdfast("gateway", "allow", "telegram", "43", "--json").data["role"] == "user"
    assert holdfast("gateway", "deny", "telegram", "43").out == "43 on telegram is denied access.\n"
    said(home, "[gateway.allow]\ntelegram = [7]\n[gateway.deny]\ndiscord = ['8']\n")
    rows = [line.split()[:3] for line in holdfast("gateway", "people").out.splitlines()]
    assert rows == [
        ["telegram", "7", "user"],
        ["discord", "8", "denied"],
        ["telegram", "42", "admin"],
        ["telegram", "43", "denied"],
    ]
    assert holdfast("gateway", "deny", "telegram", "43", "--forget").code == 0
    assert holdfast("gateway", "deny", "telegram", "43", "--forget").code == 1
    listed = holdfast("gateway", "people", "--platform", "telegram", "--json").data["people"]
    assert [each["sender"] for each in listed] == ["7", "42"]


@pytest.mark.parametrize(
    "words",
    [
        ["allow", "Telegram", "42"],
        ["allow", "telegram", " 42"],
        ["allow", "telegram", "*"],
        ["allow", "telegram", ""],
        ["allow", "telegram"],
        ["deny", "tele gram", "42"],
        ["people", "--platform", "Telegram"],
        ["pair"],
        ["open"],
        ["--port", "70000"],
        ["--grace", "-1"],
        ["retry"],
        ["retry", "1", "--all"],
        ["retry", "x"],
        ["--db", ""],
    ],
    ids=" ".join,
)
def test_wrong_use_is_said_so(holdfast: Holdfast, home: Path, words: list[str]) -> None:
    done = holdfast("gateway", *words)
    assert done.code == 2
    assert "--help`" in done.sentence


def test_what_settings_deny_cannot_be_allowed_beside_them(holdfast: Holdfast, home: Path) -> None:
    said(home, "[gateway.deny]\ntelegram = [42]\n")
    done = holdfast("gateway", "allow", "telegram", "42")
    assert done.code == 1
    assert "Remove the sender from `gateway.deny` first" in done.sentence


def test_a_name_with_control_characters_cannot_draw_on_the_terminal(holdfast: Holdfast, home: Path) -> None:
    code = asked(home, name="\x1b[2JAnn\u202e")
    assert "\x1b" not in holdfast("gateway", "pair", code).out
    assert "\x1b" not in holdfast("gateway", "people").out


@pytest.mark.parametrize(
    "arguments",
    [["pair", "ABCD"], ["people"], ["status"], ["failed"], ["retry", "1"], ["deny", "telegram", "42", "--forget"]],
    ids=lambda arguments: arguments[0],
)
def test_who_only_looks_makes_no_store(holdfast: Holdfast, home: Path, arguments: list[str]) -> None:
    done = holdfast("gateway", *arguments)
    assert done.code == 1
    assert "There is no database" in done.sentence
    assert not (home / "data" / "holdfast.db").exists()


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("[gateway]\nbusy = 'loud'", "gateway.busy", "loud"),
        ("[gateway]\nprofil = 'x'", "gateway.profil", "unknown setting"),
        ("[gateway.admins]\ntelegram = ['*']", "gateway.admins.telegram", "only valid in `allow`"),
        ("[gateway.allow]\ntelegram = [' 42']", "gateway.allow.telegram", "is not a sender id"),
        ("[gateway.allow]\nTelegram = [42]", "gateway.allow.Telegram", "lower-case letters"),
        ("[gateway.http.tokens]\nann = 'sk-not a variable'", "gateway.http.tokens.ann", "an environment variable"),
        ("[gateway.hooks.ci]\nsecret_env = 'two words'", "gateway.hooks.ci.secret_env", "not the secret"),
        ("[gateway.hooks.CI]\nsecret_env = 'X'", "gateway.hooks.CI", "lower-case letters"),
        ("[gateway.reset]\nwhen = 'daily'\nhour = 24", "gateway.reset", "0 to 23"),
        ("[gateway.http]\nport = 70000", "gateway.http.port", "65535"),
    ],
)
def test_what_cannot_be_meant_is_named_with_its_place(
    holdfast: Holdfast, home: Path, text: str, place: str, what: str
) -> None:
    said(home, text)
    (wrong,) = holdfast("config", "check", "--json").data["mistakes"]
    assert wrong["place"] == place
    assert what in wrong["what"]
    assert holdfast("gateway", "people").code == 2


def test_a_projects_file_lets_nobody_in(holdfast: Holdfast, home: Path) -> None:
    (home / ".holdfast.toml").write_text("[gateway.allow]\ntelegram = ['eve']\n", "utf-8")
    done = holdfast("gateway", "people")
    assert done.code == 2
    assert "a project's file may not set `gateway`" in done.sentence


def test_what_waits_is_told(holdfast: Holdfast, home: Path) -> None:
    holdfast("gateway", "allow", "telegram", "42")
    found = holdfast("gateway", "status", "--json").data
    assert {name: found[name] for name in ("arrivals_open", "outgoing_open", "people", "claims")} == {
        "arrivals_open": 0,
        "outgoing_open": 0,
        "people": 1,
        "claims": [],
    }
    assert holdfast("gateway", "status").out.splitlines() == [
        "waiting     0 messages in 0 chats",
        "running     none",
        "unsent      none",
        "failed      none",
        "people      1 allowed, 0 denied; `holdfast gateway people` lists them",
        "platforms   http at 127.0.0.1:8642: does not answer",
    ]


def test_what_waits_and_what_could_not_be_sent_is_told_and_sent_again(holdfast: Holdfast, home: Path) -> None:
    said(home, f"[gateway.loopback]\nsocket = '{home}/s.sock'\n")
    place = {"platform": "telegram", "chat": "dm:42", "address": {"chat": 42}}
    with SessionDB(home / "data" / "holdfast.db") as db:
        new = types.NewInboundMessage(key="1", route="agent:main:telegram:dm:42", sender="42", text="secret", **place)
        arrival, _ = db.mail.add_inbound(new)
        db.mail.begin_inbound(
            db.mail.acquire_chat_lease("route:agent:main:telegram:dm:42", holder="a gateway"), arrival.id, "talk"
        )
        lost, waits = (db.mail.post(types.NewOutgoing(text=f"The {each}", **place)) for each in ("lost\x1b[2J", "late"))
        db.mail.mark_failed(lost.id, "Chat not found.")
        db.mail.mark_failed(waits.id, "Too many requests.", waits.at + 60)
        lines = holdfast("gateway", "status").out.splitlines()
        assert lines[0] == "waiting     1 message in 1 chat"
        assert lines[1].startswith("              agent:main:telegram:dm:42: 1 message since ")
        assert lines[2] == "running     agent:main:telegram:dm:42 by a gateway"
        assert re.fullmatch(r"unsent      telegram: 1 message since .*, next attempt .*: Too many requests\.", lines[3])
        assert lines[4:6] == [
            "failed      1 message; `holdfast gateway failed` lists them",
            "              the last, to telegram dm:42: Chat not found.",
        ]
        assert lines[7] == f"platforms   loopback at {home}/s.sock: does not answer"
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
        assert holdfast("gateway", "retry", "--all").out == "0 messages queued again.\n"
        assert holdfast("gateway", "failed").out == ""
        refused = holdfast("gateway", "retry", str(waits.id), "--json")
        assert (refused.code, refused.data["sent"], len(refused.data["refused"])) == (1, [], 1)
        assert [each.text for each in db.mail.due_outgoing("telegram", now=waits.at + 100)] == ["The late"]


def test_a_list_that_is_cut_says_so() -> None:
    place = {"platform": "telegram", "chat": "dm:42", "address": {"chat": 42}}
    with SessionDB(":memory:") as db:
        lost = db.mail.post(types.NewOutgoing(text="Lost", **place))
        for count in (queue_status.DEFAULT_LIMIT - 1, queue_status.DEFAULT_LIMIT):
            found = gateway_queues.QueueState({}, [], [], [lost] * count, [], [])
            assert gateway_queues._status_to_json(found, [])["cut"] == (
                ["failed"] if count == queue_status.DEFAULT_LIMIT else []
            )


def test_hooks_without_the_server_they_come_by_are_a_mistake(holdfast: Holdfast, home: Path) -> None:
    said(home, "[gateway.http]\nenabled = false\n[gateway.loopback]\n[gateway.hooks.ci]\nsecret_env = 'CI_SECRET'\n")
    done = holdfast("config", "check")
    assert done.code
    assert "hooks need the HTTP server" in done.out + done.err


# --- the process -------------------------------------------------------------------------------------


class Gate:
    """A gateway in a process of its own, with a socket to talk to it by."""

    def __init__(self, home: Path, process: subprocess.Popen[str]) -> None:
        self.home, self.process = home, process
        self.path = str(home / "s.sock")

    def say(self, text: str, **more: str) -> dict[str, Any]:
        """The reply to a line."""
        with socket.socket(socket.AF_UNIX) as talking:
            talking.settimeout(cli_process.PATIENCE)
            talking.connect(self.path)
            talking.sendall(json.dumps({"text": text, **more}).encode() + b"\n")
            with talking.makefile("rb") as lines:
                taken = None
                for line in lines:
                    found: dict[str, Any] = json.loads(line)
                    taken = found["arrival"] if found["type"] == "taken" else taken
                    # One that was sent, and not marked before its process died, comes again.
                    if found["type"] == "reply" and found["arrival"] == taken:
                        return found
        raise AssertionError("nothing was answered")

    def stop(self, number: int) -> tuple[int, list[str]]:
        """The exit code, and the lines of its log."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=cli_process.PATIENCE)
        return self.process.returncode, err.splitlines()


@contextmanager
def running(home: Path, *arguments: str, **env: str) -> Iterator[Gate]:
    given = cli_process.environment(home, env if "HOLDFAST_MODEL" in env else {"HOLDFAST_MODEL": "offline", **env})
    with subprocess.Popen(
        [*cli_process.PROGRAM, "gateway", *arguments],
        cwd=home,
        env=given,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        try:
            yield Gate(home, process)
        finally:
            process.kill()


@contextmanager
def told(home: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """What systemd would listen at, and what it hears next."""
    path = str(home / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(path)
        heard.settimeout(cli_process.PATIENCE)
        yield path, lambda: heard.recv(4096).decode()


SOCKET = "[gateway]\ngrace = 5\n[gateway.http]\nenabled = false\n[gateway.loopback]\nsocket = '../s.sock'\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)])
def test_it_says_when_it_is_ready_answers_and_stops_as_it_is_asked_to(home: Path, number: int, code: int) -> None:
    said(home, SOCKET)
    with told(home) as (path, hear), running(home, "--log-format", "json", NOTIFY_SOCKET=path) as gate:
        assert hear().startswith("READY=1\n")
        assert "offline model" in gate.say("Hello")["text"]
        left, lines = gate.stop(number)
        assert left == code
        assert hear() == "STOPPING=1"
    assert [json.loads(line)["message"] for line in lines][-1] == "the gateway has stopped"
    assert not os.path.exists(gate.path)


def test_it_gives_signs_of_life_where_somebody_wants_them(home: Path) -> None:
    said(home, SOCKET)
    with told(home) as (path, hear), running(home, NOTIFY_SOCKET=path, WATCHDOG_USEC="200000") as gate:
        heard = [hear() for _ in range(5)]
        assert {each.partition("\n")[0] for each in heard} == {"WATCHDOG=1", "READY=1"}
        assert gate.stop(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize(
    ("level", "requests"), [((), False), (("--log-level", "debug"), True)], ids=["default", "debug"]
)
def test_log_has_no_key_of_a_request_url(home: Path, level: tuple[str, ...], requests: bool) -> None:
    log = home / "log"
    with provider_process.playing(provider_process.said("Hello.")) as played:
        env = played.env | {"OPENAI_BASE_URL": f"{played.url}/v1?key=plain-words", "HOLDFAST_LOG": str(log)}
        said(home, SOCKET)
        with told(home) as (path, hear), running(home, *level, NOTIFY_SOCKET=path, **env) as gate:
            assert hear().startswith("READY=1")
            assert gate.say("Hi")["text"] == "Hello."
            _, lines = gate.stop(signal.SIGTERM)
    for logged in ("\n".join(lines), log.read_text("utf-8")):
        assert ("HTTP Request: POST" in logged) is requests
        assert "plain-words" not in logged


def test_the_unit_for_systemd_starts_what_there_is_and_waits_for_it_to_stop() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.read(test_guide.ROOT / "docs" / "holdfast-gateway.service", "utf-8")
    started, *words = unit["Service"]["ExecStart"].split()
    assert started.endswith("/holdfast")
    test_guide.check(words)
    assert float(unit["Service"]["WatchdogSec"]) >= 30  # A machine that is busy is no reason to begin anew.
    assert (
        float(unit["Service"]["TimeoutStopSec"])
        > settings.GatewaySettings().grace + gateway.DRAIN_SECONDS + server.SHUTDOWN_SECONDS
    )


def asked_by_http(address: str, text: str) -> dict[str, Any]:
    body = json.dumps({"model": "holdfast", "messages": [{"role": "user", "content": text}]}).encode()
    request = urllib.request.Request(f"{address}/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=cli_process.PATIENCE) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_without_settings_it_listens_here_and_says_in_one_line_how_to_talk_to_it(home: Path) -> None:
    with running(home, "--port", "0") as gate:
        assert gate.process.stderr is not None
        line = gate.process.stderr.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert address is not None
        assert f"curl {address[0]}/v1/chat/completions" in line
        with urllib.request.urlopen(f"{address[0]}/health", timeout=cli_process.PATIENCE) as answer:
            assert json.load(answer)["live"]
        said = asked_by_http(address[0], "Hello")
        assert "offline model" in said["choices"][0]["message"]["content"]
        assert gate.stop(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize(
    ("text", "arguments", "what"),
    [
        ("", ["--host", "0.0.0.0"], "other machines could use the agent"),
        ("", ["--host", ""], "is not an address of this machine"),
        ("[gateway.loopback]\nsocket = 'config.toml'", [], "exists and is not a socket"),
        ("[gateway.loopback]\nsocket = 'nowhere/s'", [], "does not exist"),
        ("[gateway.http.tokens]\nann = 'ANN_TOKEN'", [], "must be in the environment variable ANN_TOKEN"),
        ("", ["--model", "nobody/none"], "is not a model name"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_sentence_that_helps(
    holdfast: Holdfast, home: Path, text: str, arguments: list[str], what: str
) -> None:
    said(home, text)
    done = holdfast("gateway", *arguments, HOLDFAST_MODEL="offline")
    assert done.code == 1
    assert what in done.sentence


def test_two_share_a_port_where_both_say_so_and_the_second_goes_on(home: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    said(home, "[gateway.http]\nshare = true\n")
    address = f"http://127.0.0.1:{port}"
    with told(home) as (path, hear), running(home, "--port", port, NOTIFY_SOCKET=path) as first:
        assert hear().startswith("READY=1")
        asked_by_http(address, "Note: the harbour closes at nine.")
        with running(home, "--port", port, NOTIFY_SOCKET=path) as second:
            assert hear().startswith("READY=1")
            assert first.stop(signal.SIGTERM)[0] == 0
            assert hear() == "STOPPING=1"
            assert asked_by_http(address, "Hello")["choices"]
            said(home, "")
            refused = cli_process.run(home, "gateway", "--port", port, env={"HOLDFAST_MODEL": "offline"})
            assert "Is a gateway running already?" in refused.sentence
            assert second.stop(signal.SIGTERM)[0] == 0


def test_one_that_is_killed_is_gone_on_with_by_the_next(home: Path) -> None:
    said(home, SOCKET)
    with told(home) as (path, hear):
        with running(home, NOTIFY_SOCKET=path) as gate:
            hear()
            polling.until(lambda: os.path.exists(gate.path))
            gate.say("Note: the harbour closes at nine.", key="1")
            gate.process.kill()
            gate.process.wait()
        with running(home, NOTIFY_SOCKET=path) as gate:
            hear()
            polling.until(lambda: _answers(gate.path))
            assert "nine" in gate.say("When does the harbour close?", key="2")["text"]
            assert gate.stop(signal.SIGTERM)[0] == 0
    with SessionDB(home / "data" / "holdfast.db") as db:
        assert db.admin.fsck().ok
        assert len(db.list_sessions()) == 1


def test_a_second_signal_does_not_wait_and_what_it_leaves_is_answered_next_time(home: Path) -> None:
    said(home, SOCKET.replace("grace = 5", "grace = 3600"))
    with (
        told(home) as (path, hear),
        provider_process.playing(
            provider_process.said_and_hung("Well"), provider_process.said("All is well.")
        ) as played,
    ):
        env = {**played.env, "NOTIFY_SOCKET": path}
        with running(home, **env) as gate, socket.socket(socket.AF_UNIX) as talking:
            hear()
            polling.until(lambda: _answers(gate.path))
            talking.connect(gate.path)
            talking.sendall(b'{"text": "Is all well?"}\n')
            polling.until(lambda: len(played.asked) == 1)
            gate.process.send_signal(signal.SIGTERM)
            assert hear() == "STOPPING=1"
            assert gate.process.poll() is None
            code, lines = gate.stop(signal.SIGTERM)
            assert (code, "turns are abandoned" in "".join(lines)) == (0, True)
        with running(home, **env) as gate, socket.socket(socket.AF_UNIX) as talking:
            hear()
            polling.until(lambda: _answers(gate.path))
            talking.settimeout(cli_process.PATIENCE)
            talking.connect(gate.path)
            assert b"All is well." in talking.makefile("rb").readline()
            assert gate.stop(signal.SIGTERM)[0] == 0


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        return asking.connect_ex(path) == 0
