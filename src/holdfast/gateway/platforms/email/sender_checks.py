"""Check who sent a mail: the authenticated sender address, and whether a program sent it. Pure.

Anyone can write any address into `From`. The receiving server checks it and records the result in a header
`Authentication-Results`, above the headers that the sender wrote. So only the topmost header with the name of that
server counts. Headers are read undecoded, because encoded words could contain results.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from email import errors as email_errors
from email import policy
from email.message import EmailMessage
from typing import Any

from holdfast import errors

ADDRESS = re.compile(r"[a-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[a-z0-9-]+(\.[a-z0-9-]+)*", re.IGNORECASE | re.ASCII)
_HARMLESS = (email_errors.ObsoleteHeaderDefect, email_errors.UndecodableBytesDefect)
_PROGRAMS = re.compile(r"mailer-daemon|postmaster|(no|do-?not)[-_.]?reply([-_.+].*)?|bounces?([-_.+].*)?")
_LIST_HEADERS = frozenset({"list-id", "list-post", "list-unsubscribe", "x-autoreply", "x-autorespond", "x-loop"})
_BULK = frozenset({"bulk", "list", "junk", "auto_reply"})
_SINGLE = ("from", "to", "cc", "subject", "message-id")
_STRUCTURED = re.compile("content-.*|from|to|cc")
MAX_STRUCTURED, MAX_PART_HEADER = 4_000, 1_000
"""Characters of the longest header of a mail and of its parts whose syntax is analysed, in quadratic time."""


class IgnoredMail(Exception):
    """Raised for a mail that must not be answered. The message says why."""


class LimitedPolicy(policy.EmailPolicy):
    """The default policy for parsing, which refuses too long headers."""

    def header_source_parse(self, sourcelines: Sequence[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(list(sourcelines))
        limit = MAX_PART_HEADER if name.lower().startswith("content-") else MAX_STRUCTURED
        if len(value) > limit and _STRUCTURED.fullmatch(name.lower()):
            raise IgnoredMail(f"a header `{name[:40]}` has more than {limit:,} characters")
        return name, value


def raw_values(message: EmailMessage, name: str) -> list[str]:
    """Return the undecoded values of all headers of a name, from the top."""
    return [str(value).strip() for key, value in message.raw_items() if key.lower() == name]


def find_sender(message: EmailMessage) -> tuple[str, str]:
    """Return the address and the display name in `From`. Raises IgnoredMail unless it is exactly one plain address.

    Programs read unusual syntax differently, so a sender could pass the check of the server under another address.
    """
    # A copy of a signed mail stays authentic if someone adds a second header, for example `To`.
    if repeated := next((name for name in _SINGLE if len(raw_values(message, name)) > 1), ""):
        raise IgnoredMail(f"it has more than one header `{repeated.capitalize()}`")
    values, headers = raw_values(message, "from"), message.get_all("from") or []
    found: Any = headers[0].addresses if len(headers) == 1 else ()
    if len(found) != 1 or not all(isinstance(each, _HARMLESS) for each in headers[0].defects):
        raise IgnoredMail("it has no single valid sender")
    address = found[0].addr_spec.lower()
    is_plain = values[0].lower() == address or values[0].lower().endswith(f"<{address}>")
    if not is_plain or not ADDRESS.fullmatch(address):
        raise IgnoredMail("its sender address is not a plain address")
    return address, found[0].display_name


def check_authentic(message: EmailMessage, sender: str, authserv: str) -> None:
    """Raise IgnoredMail unless the receiving server authenticated the domain of the sender: DMARC, or aligned DKIM."""
    prefix = re.compile(rf"{re.escape(authserv)}(\s+1)?\s*(\(|;)", re.IGNORECASE)
    header = next(filter(prefix.match, raw_values(message, "authentication-results")), "")
    domain, results = sender.partition("@")[2], _parse_results(header)
    checked = results.get("dmarc", [])
    if [each[0] for each in checked] in ([], ["none"]):  # Any other DMARC result decides.
        checked = results.get("dkim", [])
        is_authentic = any(value == "pass" and domain in (given, signer) for value, _, given, signer in checked)
    else:
        is_authentic = len(checked) == 1 and checked[0][0] == "pass" and checked[0][1] == domain
    if not is_authentic:
        raise IgnoredMail(f"{authserv} did not authenticate the domain of its sender {errors.quote(sender)}")


def _parse_results(header: str) -> dict[str, list[tuple[str, str, str, str]]]:
    """Return the results of each method: value, `header.from`, `header.d`, and the domain of `header.i`."""
    found: dict[str, list[tuple[str, str, str, str]]] = {}
    for statement in re.sub(r"\s*=\s*", "=", _strip_quoted(header).lower()).split(";")[1:]:
        first, *rest = statement.split() or [""]
        method, _, value = first.partition("=")
        fields = dict(each.partition("=")[::2] for each in reversed(rest))
        identity = fields.get("header.i", "").rpartition("@")[2]
        result = (value, fields.get("header.from", ""), fields.get("header.d", ""), identity)
        found.setdefault(method.partition("/")[0], []).append(result)
    return found


def _strip_quoted(header: str) -> str:
    """Remove comments and quoted strings, which may repeat text of the sender; empty if they are not closed."""
    kept, depth, is_quoted, is_escaped = list[str](), 0, False, False
    for char in header:
        if is_escaped:
            is_escaped = False
        elif char == "\\":
            is_escaped = True
        elif char == '"' and not depth:
            is_quoted = not is_quoted
        elif char in "()" and not is_quoted:
            depth += 1 if char == "(" else -1
            if depth < 0:
                return ""
        elif not depth and not is_quoted:
            kept.append(char)
    return "" if depth or is_quoted else "".join(kept)


def check_personal(message: EmailMessage, sender: str) -> None:
    """Raise IgnoredMail for mail of programs and lists (RFC 3834), so that two programs never answer each other."""

    def words(name: str) -> set[str]:
        return {value.lower().split(";")[0].split(",")[0].strip() for value in raw_values(message, name)}

    if words("auto-submitted") - {"no"}:
        raise IgnoredMail("it was sent automatically")
    if words("precedence") & _BULK or _LIST_HEADERS & {name.lower() for name in message}:
        raise IgnoredMail("it is bulk mail or mail of a list")
    if words("x-auto-response-suppress") - {"none"}:
        raise IgnoredMail("its sender does not want automatic replies")
    if "<>" in raw_values(message, "return-path") or message.get_content_type() == "multipart/report":
        raise IgnoredMail("it is a delivery report")
    if _PROGRAMS.fullmatch(sender.partition("@")[0]):
        raise IgnoredMail("its sender is a program")
