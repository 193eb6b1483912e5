"""E-mail: threads, senders, loops, files and failures, with a mail server on loopback and the real client libraries."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from email import policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast

import hypothesis
import pytest
from hypothesis import strategies

from holdfast import AsyncSessionDB, errors
from holdfast.gateway import access, gateway, platform
from holdfast.gateway.platforms.email import inbound_mail, mail_text, outbound_mail, sender_checks
from holdfast.model import ScriptedModel
from tests.support import gateways, memory_platform, tls
from tests.support.approvals import Shell, shell_reply
from tests.support.email_server import AGENT, ANN, AUTHSERV, BEN, MailServer, parse, text_of, write
from tests.support.memory_platform import open_recorded
from tests.support.platform_contract import echo_model
from tests.support.polling import until_async

PASS = f"{AUTHSERV}; dmarc=pass header.from=example.org"
PNG = b"\x89PNG\r\n\x1a\n pixels"
MAILBOX = inbound_mail.Mailbox("email", AGENT, frozenset({AGENT}), AUTHSERV)
UNCHECKED = MAILBOX._replace(authserv="")


@pytest.fixture
async def mail_server() -> AsyncIterator[MailServer]:
    async with MailServer().run() as running:
        yield running


@asynccontextmanager
async def open_answering(
    mail_server: MailServer, db: AsyncSessionDB, model: Any, **given: Any
) -> AsyncIterator[gateway.Gateway]:
    """Run a gateway; at the end, wait until all mail is read and answered."""
    async with gateways.run_platform(db, model, mail_server.platform(), **given) as opened:
        yield opened
        await until_async(mail_server.is_read)


delivery = functools.partial(gateways.delivery, platform="email", address={"to": ANN})


def read_mail(raw: bytes, mailbox: inbound_mail.Mailbox = MAILBOX) -> platform.Incoming:
    return inbound_mail.read_headers(raw.partition(b"\r\n\r\n")[0], mailbox).with_body(raw)


def read(mail: EmailMessage) -> platform.Incoming:
    return read_mail(mail.as_bytes())


def sender_of(headers: Iterable[tuple[str, str]], mailbox: inbound_mail.Mailbox = MAILBOX) -> str | None:
    """Return the sender of a mail with these headers, or None if the mail is ignored."""
    raw = "".join(f"{name}: {value}\r\n" for name, value in headers) + "\r\nHi\r\n"
    try:
        return read_mail(raw.encode(), mailbox).sender
    except sender_checks.IgnoredMail:
        return None


# --- threads --------------------------------------------------------------------------------------------------


async def test_mail_is_answered_in_its_thread(mail_server: MailServer, db: AsyncSessionDB) -> None:
    mail = write("When is high water?", "Ann Ahoi <Ann@Example.org>", Subject="Re: AW: Boats")
    model = ScriptedModel(["At **noon**. ![x](https://e.test/x) <img src='//e.test/y'>"])
    async with open_answering(mail_server, db, model):
        mail_server.deliver(mail)
    (reply,) = mail_server.sent
    inbound = await db.mail.inbound_by_key("email", f"{ANN} {mail['Message-ID']}")
    assert (inbound.text, inbound.sender, inbound.name) == ("Subject: Boats\n\nWhen is high water?", ANN, "Ann Ahoi")
    headers = ("From", "To", "Cc", "Subject", "In-Reply-To", "References", "Auto-Submitted")
    wanted = [AGENT, ANN, None, "Re: Boats", mail["Message-ID"], mail["Message-ID"], "auto-replied"]
    assert [reply[name] for name in headers] == wanted
    html = reply.get_body(("html",))
    assert "<strong>noon</strong>" in html.get_content()
    assert "<img" not in html.get_content()


async def test_thread_is_a_conversation_of_its_sender(mail_server: MailServer, db: AsyncSessionDB) -> None:
    async with open_answering(mail_server, db, echo_model()) as opened:
        mail_server.deliver(first := write("One", Subject="Boats"))
        mail_server.deliver(write("Other", Subject="Boats"))
        await until_async(lambda: len(mail_server.sent) == 2)
        reply = next(each for each in mail_server.sent if each["In-Reply-To"] == first["Message-ID"])
        quoted = f"Two\n\nOn Monday, {AGENT} wrote:\n> re Subject: Boats\n>\n> One"
        mail_server.deliver(write(quoted, answers=reply))
        # Outlook does not repeat the first id. Ben continues the thread, and gets a conversation of his own.
        mail_server.deliver(write("Three", answers=reply, References=""))
        mail_server.deliver(write("Four", answers=first))
        history = f"\n\nOn Monday, {AGENT} wrote:\n> re Subject: Boats"
        mail_server.deliver(write(f"Five{history}", BEN, answers=reply))
        await until_async(mail_server.is_read)
        await gateways.wait_idle(opened, db)
        keys = [f"{parse(raw)['From']} {parse(raw)['Message-ID']}" for raw, _ in mail_server.mails]
        found = await gateways.wait_settled(db, *keys, platform="email")
        one, other, two, three, four, five = [each.conversation_id for each in found]
    assert one == two == three == four
    assert len({one, other, five}) == 3
    assert [each.replace("\r", "") for each in mail_server.texts(BEN)] == [f"re Five{history}"]
    expected = [*(f"re Subject: Boats\n\n{each}" for each in ("Four", "One", "Other")), "re Three", "re Two"]
    assert sorted(each.replace("\r", "") for each in mail_server.texts()) == expected


async def test_mail_to_several_people_is_a_group(mail_server: MailServer) -> None:
    many = ", ".join(f"p{number}@example.org" for number in range(inbound_mail.MAX_OTHERS + 1))
    async with open_recorded(mail_server.platform(aliases=["Help@holdfast.test"])) as handler:
        mail_server.deliver(write("direct", to=f"help@holdfast.test, {ANN}"))
        mail_server.deliver(write("hidden", to="undisclosed-recipients:;"))
        mail_server.deliver(write("group", to=f"{AGENT}, {BEN}", Cc="Cy <cy@example.org>"))
        mail_server.deliver(write("for information", to=BEN, Cc=AGENT))
        mail_server.deliver(write("many", Cc=many))
        await until_async(mail_server.is_read)
    found = [(each.text, each.kind, len(each.chat), each.address.get("cc")) for each in handler.received]
    assert found[:2] == [("direct", "dm", 2, None), ("hidden", "dm", 2, None)]
    assert found[2:] == [("group", "group", 1, [BEN, "cy@example.org"]), ("many", "group", 1, None)]


async def test_reply_in_a_group_goes_to_all_recipients(
    mail_server: MailServer, db: AsyncSessionDB, caplog: pytest.LogCaptureFixture
) -> None:
    mail_server.refused = {"cy@example.org": "550 No such user"}
    async with open_answering(mail_server, db, ScriptedModel(["Hello."])):
        mail_server.deliver(write("Hi", Cc=f"{BEN}, cy@example.org"))
    assert [(each["To"], each["Cc"]) for each in mail_server.sent] == [(ANN, f"{BEN}, cy@example.org")]
    assert mail_server.recipients == [[ANN, BEN]]
    assert "the server refused 'cy@example.org' as a recipient: 550 'No such user'" in caplog.text


async def test_webhook_reply_begins_a_thread(mail_server: MailServer) -> None:
    chat = mail_server.platform()
    await chat.send(delivery("# The build ended\nwith 0.", address={"chat": ANN}))
    (sent,) = mail_server.sent
    assert (sent["To"], sent["Subject"], sent["Auto-Submitted"]) == (ANN, "The build ended", "auto-generated")
    replies = [read(write("Why?", answers=sent)), read(write("Why?", answers=sent, References=""))]
    assert len({each.chat for each in replies}) == 1
    with pytest.raises(errors.SendRefused, match="not a mail address"):
        await chat.send(delivery(address={"chat": "ann"}))


# --- receipt --------------------------------------------------------------------------------------------------


async def test_new_mail_ends_the_wait(mail_server: MailServer) -> None:
    async with open_recorded(mail_server.platform(poll_seconds=1_000)) as handler:
        for text in ("One", "Two"):
            await until_async(lambda: mail_server.idle)
            mail_server.deliver(write(text))
            # The client library misses reports that arrive together with the answer to IDLE.
            await until_async(lambda: mail_server.announce() or mail_server.is_read())
    assert [each.text for each in handler.received] == ["One", "Two"]


async def test_server_without_idle_is_polled(mail_server: MailServer) -> None:
    mail_server.capabilities = "IMAP4rev1"
    async with open_recorded(mail_server.platform(poll_seconds=0.01)) as handler:
        mail_server.deliver(write("Hi"))
        await until_async(lambda: handler.received)


async def test_connections_are_encrypted_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = tls.Authority(tmp_path)
    options = {f"{name}_host": "localhost" for name in ("imap", "smtp")} | {"imap_security": "tls"}
    async with MailServer(authority.context("localhost")).run() as server:
        options["smtp_security"] = "starttls"
        chat = server.platform(**options)
        with pytest.raises(errors.SendFailed, match="could not be used"):  # The certificate is not trusted.
            await chat.send(delivery())
        with pytest.raises(OSError, match="certificate verify failed"):
            await chat.run(cast("platform.Handler", memory_platform.RecordingHandler()))
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.root))
        async with open_recorded(server.platform(**options)) as handler:
            server.deliver(write("Hi"))
            await until_async(lambda: handler.received)
        chat = server.platform(**options)
        await chat.send(delivery())
        monkeypatch.delenv("SSL_CERT_FILE")  # The certificates are loaded once.
        await chat.send(delivery())
        assert server.texts() == ["Hi", "Hi"]


async def test_server_without_encryption_gets_no_password(mail_server: MailServer) -> None:
    report = await mail_server.platform(imap_security="starttls", smtp_security="starttls").check_access()
    assert (len(report.problems), "LOGIN" in mail_server.commands) == (2, False)


# --- senders --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("results", "is_authentic"),
    [
        ("dmarc=pass header.from=example.org", True),
        ("spf=fail; dmarc = pass (p=x) header.from=Example.org", True),
        ("dkim=pass header.d=example.org", True),
        ("dkim=pass header.i=@example.org header.s=s", True),
        ("dmarc=none header.from=example.org; dkim=pass header.d=example.org", True),
        ("dmarc=none header.from=example.org", False),
        ("dkim=fail header.d=a; dkim/1=pass header.d=example.org", True),
        ("dmarc=pass header.from=evil.test", False),
        ("dmarc=pass", False),
        ("dmarc=fail; dkim=pass header.d=example.org", False),
        ("dmarc=pass header.from=example.org; dmarc=fail", False),
        ("dkim=pass header.d=evil.test; spf=pass smtp.mailfrom=a@example.org", False),
        ("dkim=pass header.d=org", False),
        ("dkim=none (; dkim=pass header.d=example.org; )", False),
        ("dkim=pass header.d=example.org header.i=(@e.test; dmarc=fail header.from=example.org", False),
        ('spf=pass smtp.mailfrom="; dmarc=pass header.from=example.org;"@e.test', False),
        ('spf=pass smtp.mailfrom="\\"; dmarc=pass header.from=example.org; \\""@e.test', False),
        ("spf=none =?utf-8?q?;_dmarc=3Dpass_header.from=3Dexample.org?=", False),
    ],
)
def test_sender_needs_a_result_for_its_domain(results: str, is_authentic: bool) -> None:
    headers = [("Authentication-Results", f"{AUTHSERV}; {results}"), ("From", ANN), ("To", AGENT)]
    assert (sender_of(headers) == ANN) is is_authentic
    assert sender_of(headers, UNCHECKED) == ANN


@pytest.mark.parametrize(
    ("results", "is_authentic"),
    [
        pytest.param([PASS.replace(AUTHSERV, "MX.Holdfast.TEST 1 (c)")], True, id="syntax"),
        pytest.param(["other.test; dmarc=fail", PASS], True, id="other server above"),
        pytest.param([], False, id="none"),
        pytest.param([PASS.replace(AUTHSERV, "evil.test")], False, id="other server"),
        pytest.param([PASS.replace(AUTHSERV, f"{AUTHSERV}.evil.test")], False, id="longer name"),
        pytest.param([f"{AUTHSERV}; none", PASS], False, id="injected below"),
        pytest.param([f"{AUTHSERV}; spf=pass (open", PASS], False, id="injected below unclosed comment"),
        pytest.param([PASS.replace(";", "")], False, id="no separator"),
    ],
)
def test_only_the_topmost_result_of_the_receiving_server_counts(results: list[str], is_authentic: bool) -> None:
    headers = [*(("Authentication-Results", each) for each in results), ("From", ANN), ("To", AGENT)]
    assert (sender_of(headers) == ANN) is is_authentic


@hypothesis.given(strategies.text(strategies.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=60))
def test_text_of_the_sender_in_results_authenticates_nothing(text: str) -> None:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("(", "\\(").replace(")", "\\)")
    inside = f"{escaped}; dmarc=pass header.from=example.org;"
    header = f'{AUTHSERV}; spf=pass ({inside}) smtp.mailfrom="{inside}"@evil.test'
    message = EmailMessage()
    message.add_header("Authentication-Results", header)
    with pytest.raises(sender_checks.IgnoredMail):
        sender_checks.check_authentic(message, ANN, AUTHSERV)


@pytest.mark.parametrize(
    ("value", "sender"),
    [
        (ANN, ANN),
        (f"<{ANN}>", ANN),
        (f"Ann B. Ahoi <{ANN}>", ANN),
        (f'"{BEN}" <{ANN}>', ANN),
        (f"=?utf-8?q?{BEN.replace('@', '=40')}_=3C{BEN.replace('@', '=40')}=3E?= <{ANN}>", ANN),
        (f'"\\" <{BEN}>" <{ANN}>', ANN),
        (f"{BEN} <{ANN}>", None),
        (f"<{ANN}> {BEN}", None),
        (f"{ANN}, {BEN}", None),
        (f"{ANN}\r\nFrom: {BEN}", None),
        (f"{ANN}\r\nTo: {BEN}", None),
        ("(a)" * 1_500 + f" <{ANN}>", None),
        (f"People: {ANN};", None),
        (f"<{ANN}>\0<{BEN}>", None),
        (f"{ANN} (<{BEN}>)", None),
        (f"<@evil.test:{ANN}>", None),
        (f"{ANN}@evil.test", None),
        ('"a b"@example.org', None),
        ("=?utf-8?q?ann=40example.org?=", None),
        ("\u0430nn@example.org", None),
        ("", None),
    ],
)
def test_sender_is_exactly_one_plain_address(value: str, sender: str | None) -> None:
    assert sender_of([("Authentication-Results", PASS), ("From", value), ("To", AGENT)]) == sender


async def test_forged_mail_gets_no_answer_and_a_stranger_a_code(mail_server: MailServer, db: AsyncSessionDB) -> None:
    checks = [access.Access(db, access.Rules(allow={"email": frozenset({ANN})}))]
    async with open_answering(mail_server, db, ScriptedModel(["Hello."]), checks=checks):
        mail_server.deliver(write("forged", Authentication_Results=f"{AUTHSERV}; dmarc=fail header.from=example.org"))
        mail_server.deliver(write("/help", Authentication_Results=""))
        mail_server.deliver(write("stranger", BEN))
        mail_server.deliver(write("stranger in a group", "cy@example.org", Cc=ANN))
        mail_server.deliver(write("authentic"))
    assert mail_server.texts() == ["Hello."]
    (code,) = mail_server.texts(BEN)
    assert "pairing code" in code
    bodies = [each for each in mail_server.commands if "BODY.PEEK[]" in each]
    assert bodies == ["UID FETCH 5 (BODY.PEEK[])"], "only mail of senders with access is read"
    assert len(mail_server.sent) == 2


@pytest.mark.parametrize(
    "headers",
    [
        {"Auto-Submitted": "auto-generated; type=x"},
        {"Precedence": "LIST"},
        {"X-Auto-Response-Suppress": "OOF, AutoReply"},
        {"List-Id": "Boats <boats.example.org>"},
        {"Return-Path": "<>"},
        {"Content-Type": "multipart/report; report-type=delivery-status"},
        {"Auto-Submitted": "auto-replied"},
        {"From": f"Agent <{AGENT.upper()}>"},
        {"From": "MAILER-DAEMON@example.org"},
        {"From": "noreply+x@example.org"},
        {"From": "bounces-7@example.org"},
    ],
    ids=str,
)
def test_mail_of_programs_is_not_answered(headers: dict[str, str]) -> None:
    known = {"Authentication-Results": PASS, "From": ANN, "Auto-Submitted": "no", "Return-Path": f"<{ANN}>"}
    assert sender_of(known.items(), UNCHECKED) == ANN
    assert sender_of({**known, **headers}.items(), UNCHECKED) is None


# --- content --------------------------------------------------------------------------------------------------

REPLY, TYPE = (
    {"In-Reply-To": inbound_mail.message_id("0" * 20, inbound_mail.reader_of(ANN), 1, 1.0, AGENT)},
    {"Content-Type": "text/html"},
)
HTML = (
    "<html><head><title>t</title><style>p {}</style></head><body><p>One &amp;\n two</p><ul><li>a</li><li>b</li></ul>"
    "three<br>four<div>On Monday at 10:40 Ann wrote:</div><blockquote><p>old</p></blockquote></body></html>"
)
HTML_TEXT = "One & two\n- a\n- b\nthree\nfour"


@pytest.mark.parametrize(
    ("text", "headers", "expected"),
    [
        pytest.param("Hi", {"Subject": "Boats"}, "Subject: Boats\n\nHi", id="subject of a new thread"),
        pytest.param("", {"Subject": "Boats"}, "Subject: Boats", id="subject only"),
        pytest.param("Hi", {"Subject": "Re: Boats", **REPLY}, "Hi", id="subject of a reply"),
        pytest.param("Hi", {"Subject": "=?utf-8?q?a=0A/new_1=00?="}, "Subject: a /new 1\n\nHi", id="hostile subject"),
        pytest.param("/approve 1\n\nSent from my phone", {"Subject": "x"}, "/approve 1", id="command"),
        pytest.param(" \n/deny 2 No.\n> old", REPLY, "/deny 2 No.", id="command in a reply"),
        pytest.param("/etc is full\nHelp", {}, "/etc is full\nHelp", id="no command"),
        pytest.param("Hi\n-- \nAnn\n/approve 1", {}, "Hi", id="signature"),
        pytest.param("New\n\nOn 5/18/2026 Ann wrote:\n> old\n> older\n", REPLY, "New", id="history"),
        pytest.param("New\n\nOn Mon, Ann\n<a@b.c>\nwrote:\n\n> old", REPLY, "New", id="long attribution"),
        pytest.param("On 18.11.26 10:40, Ann wrote:\n> a", REPLY, ..., id="all"),
        pytest.param("Hi.\nFix these:\n> a\n> b", REPLY, ..., id="text above a quotation"),
        pytest.param("No.\n\nOn Mon at 10:40, Ben wrote:\n> a", {**REPLY, "Cc": BEN}, ..., id="history of others"),
        pytest.param("> Shall I?\nYes\n> And?\nNo", REPLY, ..., id="answers between"),
        pytest.param("New\n-----Original Message-----\nFrom: A\nold", REPLY, "New", id="Outlook"),
        pytest.param(f"New\n{'_' * 32}\nVon: A\nold", REPLY, "New", id="Outlook in German"),
        pytest.param(f"New\n{'_' * 32}\nmore", REPLY, ..., id="rule"),
        pytest.param("See below\n\nBen wrote:\n> news", {}, ..., id="forwarded"),
        pytest.param(HTML, TYPE, HTML_TEXT + "\nOn Monday at 10:40 Ann wrote:\n> old", id="HTML"),
        pytest.param(HTML, {**TYPE, **REPLY}, HTML_TEXT, id="HTML reply"),
        pytest.param("<head><title/><style/></head><body>Hi<style>p</style></body>", TYPE, "Hi", id="empty"),
        pytest.param("<style>p<body>Hi", TYPE, "Hi", id="unclosed style"),
        pytest.param("a\0b\x1b[2J\r\nc", {}, "ab[2J\nc", id="control characters"),
    ],
)
def test_text_is_the_new_part_of_the_body(text: str, headers: dict[str, str], expected: Any) -> None:
    """With `...`, all of the text is expected."""
    fields = {"Authentication-Results": PASS, "From": ANN, "To": AGENT, **headers}
    raw = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode() + b"\r\n" + text.encode()
    assert read_mail(raw).text == (text if expected is ... else expected)


@pytest.mark.parametrize("line", ["x\n", "\n"])
def test_history_of_a_long_mail_is_removed_in_linear_time(line: str) -> None:
    # Quadratic time exceeds the timeout of the test.
    text = "New" + line * (mail_text.MAX_PARSED // len(line) - 50) + "\nEnd"
    is_removed = mail_text.strip_history(f"{text}\n\nAt 10:40 Ann wrote:\n> old") == text
    is_refused = mail_text.strip_history(too_long := line * mail_text.MAX_PARSED + "\n> old") == too_long
    assert (is_removed, is_refused) == (True, True)
    long_line = "10.40 @" * (mail_text.MAX_PARSED // 8) + ":\n> old"
    assert mail_text.strip_history(long_line) == long_line


NESTED = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (n, n) for n in range(2_000))

PART = b"Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\nContent-Type: text/plain"
UNCLOSED = b"<!--" * 200_000 + b"--><b " * 90_000 + b"<!" * 90_000


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(b"Content-Type: text/plain; charset=no-such\r\n\r\nHi \xff", id="unknown charset"),
        pytest.param(b"Content-Type: text/plain; charset=punycode\r\n\r\nHi", id="slow codec"),
        pytest.param(b"Content-Type: text/plain; charset=rot13\r\n\r\nHi", id="codec that is no charset"),
        pytest.param(b"Content-Type: text/plain; charset=utf-16\r\n\r\nHi\0", id="undecodable"),
        pytest.param(b"Content-Type: multipart/alternative; boundary=x\r\n\r\n--x\r\n\r\nHi", id="unclosed part"),
        pytest.param(NESTED, id="nested parts"),
        pytest.param(b"Content-Type: multipart/mixed; boundary=x\r\n\r\n" + b"--x\r\n\r\n" * 2_000, id="many parts"),
        pytest.param(PART + b"; a=b" * 200_000, id="long header of a part"),
        pytest.param(b"Cc: " + b"(a)" * 32_000 + b"\r\n\r\nHi", id="long recipients"),
        pytest.param(b"Content-Type: text/html\r\n\r\n" + UNCLOSED, id="unclosed HTML"),
        pytest.param(b"Subject: =?utf-8?b?////?= =?x?q?=FF?=\r\n\r\nHi", id="bad encoded words"),
        pytest.param(b"Subject: " + b"=?utf-8?q?a?= " * 5_000 + b"\r\n\r\nHi", id="long subject"),
        pytest.param(b"Subject: \xff\xfe\xed\xa0\x80\r\n\r\n\xed\xa0\x80Hi", id="surrogates"),
        pytest.param(b"X-Long: " + b"a" * 200_000 + b"\r\n\r\nHi", id="long headers"),
        pytest.param(b"References: " + b"<a@b> " * 9_000 + b"<" + b"c" * 3_000 + b">\r\n\r\nHi", id="many references"),
        pytest.param(b"Message-ID: <a\0b>\r\nIn-Reply-To: <<>>\r\n\r\nHi", id="bad ids"),
        pytest.param(b"Message-ID: =?utf-8?q?=3Cx=0AFrom=3A_evil=3E?=\r\n\r\nHi", id="encoded id"),
        pytest.param(b"Content-Disposition: attachment; filename*=utf-8''..%2F%00%ff\r\n\r\nHi", id="file name"),
        pytest.param(b"Cc: " + b"(" * 3_000 + b"\r\n\r\nHi", id="nested comments"),
    ],
)
async def test_hostile_mail_stops_nothing(rest: bytes, mail_server: MailServer, db: AsyncSessionDB) -> None:
    head = f"Authentication-Results: {PASS}\r\nFrom: Eve\0 <{BEN}>\r\nTo: {AGENT}\r\n".encode().replace(b"\0", b"")
    async with open_answering(mail_server, db, ScriptedModel(["Hello."] * 2)):
        mail_server.deliver(head + rest)
        mail_server.deliver(write("Hi"))
    assert mail_server.texts() == ["Hello."]
    for mail in mail_server.sent:
        assert all("evil" not in str(value) for value in mail.values())


def test_structure_that_takes_too_long_to_parse_is_not_read() -> None:
    nested = NESTED[: NESTED.index(b"b300")] + b"\r\n" * 200_000
    with pytest.raises(mail_text.UnreadableMail, match="too complex"):
        mail_text.parse(nested, policy.default, max_seconds=0.1)


async def test_mail_that_cannot_be_parsed_is_flagged(
    mail_server: MailServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> Any:
        raise IndexError("a bug of the parser")

    monkeypatch.setattr(mail_text, "read_parts", fail)
    with caplog.at_level(logging.ERROR):
        async with open_recorded(mail_server.platform()):
            uid = mail_server.deliver(write("Hi"))
            await until_async(lambda: mail_server.flags(uid) == {"\\Seen", "\\Flagged"})
    assert "cannot read mail 1" in caplog.text


async def test_files_are_received(mail_server: MailServer) -> None:
    mail = write("Look")
    mail.add_alternative("<p>Look</p>", subtype="html")
    mail.add_attachment(PNG, maintype="image", subtype="png", filename="a.png")
    mail.add_attachment("words", filename="b.txt")
    mail.add_attachment(write("inner", Subject="x"))
    mail.add_attachment(b"s", maintype="application", subtype="pgp-signature")
    two = EmailMessage()
    two.set_content("below", disposition="inline")
    mail.attach(two)
    async with open_recorded(mail_server.platform(max_mail_kilobytes=20)) as handler:
        mail_server.deliver(mail)
        mail_server.deliver(write("x" * 30_000, Subject="Big"))
        await until_async(lambda: len(handler.received) == 2)
    first, second = handler.received
    assert first.text == "Look\n\nbelow"
    attached = [(each.media_type, each.name) for each in first.attachments]
    assert attached == [("image/png", "a.png"), ("text/plain", "b.txt"), ("message/rfc822", "")]
    assert first.attachments[0].data == PNG
    assert b"inner" in first.attachments[2].data
    not_read = inbound_mail.NOT_READ.format(why="it has 31 kilobytes, and the limit is 20")
    assert (second.text, second.attachments) == (f"Subject: Big\n\n{not_read}", ())


async def test_files_are_sent_and_an_attached_report_is_a_plain_one(mail_server: MailServer) -> None:
    files = [("a.png", "image/png", PNG), ("report", "message/delivery-status", b"Status: 5.0.0")]
    await mail_server.platform().send(delivery("Look", files=[gateways.outgoing_file(*each) for each in files]))
    (sent,) = mail_server.sent
    assert text_of(sent) == "Look"
    attached = [(each.get_filename(), each.get_content_type(), each.get_content()) for each in sent.iter_attachments()]
    assert attached == [files[0], ("report", "application/octet-stream", b"Status: 5.0.0")]


def test_long_ids_are_written_as_they_are() -> None:
    ids = [f"<{number}{'x' * 90}@example.org>" for number in range(3)]
    mail = outbound_mail.build(delivery(address={"to": ANN, "references": ids}), AGENT, []).as_bytes()
    assert f"In-Reply-To: {ids[2]}\r\n".encode() in mail
    assert "References: {}\r\n {}\r\n {}\r\n".format(*ids).encode() in mail


async def test_approval_is_answered_by_a_reply(mail_server: MailServer, db: AsyncSessionDB) -> None:
    shell, model = Shell(), ScriptedModel([shell_reply("make"), "Done."])
    async with open_answering(mail_server, db, model, tools=[shell.tool]):
        mail_server.deliver(write("Build it.", Subject="Build"))
        await until_async(lambda: mail_server.sent)
        (question,) = mail_server.sent
        await gateways.wait_sent(db)
        assert "/approve 1" in text_of(question)
        mail_server.deliver(write("/approve 1\n\nSent from my phone", answers=question))
        await until_async(lambda: "Done." in mail_server.texts())
        mail_server.deliver(write("/status"))
        await until_async(lambda: any(each.startswith("```\r\nmodel  ") for each in mail_server.texts()))
    assert shell.ran == ["make"]


# --- sending --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "refused", "error"),
    [
        ("451 Try again", {}, errors.SendFailed),
        ("421 Shutting down", {}, errors.SendFailed),
        ("552 Too large", {}, errors.SendRefused),
        ("550 5.4.5 Daily user sending limit exceeded", {}, errors.SendFailed),
        ("535 Bad credentials", {}, errors.SendFailed),
        ("", {ANN: "550 No such user"}, errors.SendRefused),
        ("", {ANN: "550 No such user", BEN: "450 Mailbox busy"}, errors.SendFailed),
        ("lose", {}, errors.SendFailed),
    ],
)
async def test_answer_of_the_server_is_final_or_retried(
    failure: str, refused: dict[str, str], error: type[errors.HoldfastError], mail_server: MailServer
) -> None:
    mail_server.failures, mail_server.refused = [failure] if failure else [], refused
    with pytest.raises(error):
        await mail_server.platform().send(delivery(address={"chat": ANN, "cc": [*refused][1:]}))


async def test_failed_reply_is_sent_again_with_the_same_id(mail_server: MailServer, db: AsyncSessionDB) -> None:
    mail_server.failures = ["451 Try again", "lose"]
    async with open_answering(mail_server, db, ScriptedModel(["Hello."])):
        mail_server.deliver(write("Hi"))
    assert mail_server.texts() == ["Hello."] * 2
    assert len({each["Message-ID"] for each in mail_server.sent}) == 1
