"""The text of a mail: the body without quoted history and signature. Pure."""

from __future__ import annotations

import html
import itertools
import re
import time
from email import feedparser, policy
from email.message import EmailMessage, Message

from holdfast.gateway import platform
from holdfast.model import surrogates

MAX_PARSED = 4_000_000
"""Characters of the longest text whose history is removed. The gateway refuses a longer one."""
MAX_PARTS, MAX_SECONDS = 200, 5.0
"""The most parts of a mail, and seconds of processor time for its structure."""
_CHUNK = 1 << 14
_SLOW_CODECS = frozenset({"idna", "punycode"})
_SIGNATURES = frozenset({"application/pgp-signature", "application/pkcs7-signature", "application/x-pkcs7-signature"})
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_SEPARATOR = re.compile(r"-{3,} ?Original Message ?-{3,}|_{20,}", re.IGNORECASE)
_HEADER_LINE = re.compile(r"\*?[A-Z][\w-]{1,20}:\*? \S")
_TAG, _COMMENT = re.compile(r"<(/?[a-zA-Z][^<>]*)>"), re.compile(r"<!--.*?(?:-->|\Z)|<[!?][^<>]*>", re.DOTALL)
_ORIGIN = re.compile(r"@|\b\d{4}\b|\d{1,2}[:.]\d{2}\b")
"""An address, a date or a time, one of which is in the line above a quotation."""
MAX_ATTRIBUTION = 1_000
_HIDDEN = frozenset({"head", "script", "style", "title"})
_BLOCKS = frozenset(
    {"p", "div", "table", "tr", "ul", "ol", "pre", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "li"}
)


def html_to_text(source: str) -> str:
    """Return the visible text of HTML; quotations get the mark `>`. It takes linear time, unlike `html.parser`."""
    pieces, hidden, quotes, is_empty = list[str](), 0, 0, True
    for number, token in enumerate(_TAG.split(_COMMENT.sub("", source))):
        if number % 2 == 0:
            text = re.sub(r"\s+", " ", html.unescape(token))
            text = text.lstrip() if is_empty else text
            if text and not hidden:
                pieces += ["> " if is_empty and quotes else "", text]
                is_empty = False
            continue
        name, is_end = token.lower().strip("/").split()[0], token.startswith("/")
        if name == "br" or (name in _BLOCKS and not is_empty):
            pieces.append("\n")
            is_empty = True
        if name == "li" and not is_end:
            pieces += ["- "]
        change = -1 if is_end else 0 if token.endswith("/") else 1
        hidden = 0 if name == "body" else max(hidden + change * (name in _HIDDEN), 0)
        quotes = max(quotes + change * (name == "blockquote"), 0)
    return "".join(pieces)


class UnreadableMail(Exception):
    """Raised for a mail whose body cannot be read. The message says why."""


def parse(raw: bytes, message_policy: policy.Policy[EmailMessage], max_seconds: float = MAX_SECONDS) -> EmailMessage:
    """Parse a mail, whose time can grow with the product of its lines and nested parts. Raises UnreadableMail."""
    reading, start = feedparser.BytesFeedParser(EmailMessage, policy=message_policy), time.thread_time()
    for at in range(0, len(raw), _CHUNK):
        reading.feed(raw[at : at + _CHUNK])
        if time.thread_time() - start > max_seconds:
            raise UnreadableMail("its structure is too complex")
    return reading.close()


def read_parts(message: EmailMessage) -> tuple[str, tuple[platform.Attachment, ...]]:
    """Return the text and the files of a mail. Of alternatives, plain text is preferred to HTML."""
    leaves = _leaves(message)
    if len(leaves) > MAX_PARTS:
        raise UnreadableMail(f"it has {len(leaves):,} parts, and the limit is {MAX_PARTS}")
    body = message.get_body(("plain", "html"))
    texts, files = list[str](), list[platform.Attachment]()
    for part, is_alternative in leaves:
        kind, name = part.get_content_type(), part.get_filename()
        is_text = kind in ("text/plain", "text/html") and not name and part.get_content_disposition() != "attachment"
        if part is body or (is_text and not is_alternative):
            texts.append(html_to_text(_decode(part)) if kind == "text/html" else _decode(part))
        elif not is_text and kind not in _SIGNATURES:
            files.append(platform.Attachment(_content(part), kind, surrogates.repair(name or "")))
    text = "\n".join(texts).replace("\r\n", "\n").replace("\r", "\n")
    return surrogates.repair(_CONTROL.sub("", text)).strip(), tuple(files)


def _leaves(part: Message, is_alternative: bool = False) -> list[tuple[Message, bool]]:
    """Return the parts that have content, and whether they are one of several alternatives."""
    if part.get_content_maintype() != "multipart" or not part.is_multipart():
        return [(part, is_alternative)]
    inside = is_alternative or part.get_content_subtype() == "alternative"
    return [each for child in part.get_payload() for each in _leaves(child, inside)]  # type: ignore[arg-type]


def _content(part: Message) -> bytes:
    if part.is_multipart():  # An attached mail.
        return b"".join(each.as_bytes() for each in part.get_payload())  # type: ignore[union-attr]
    found = part.get_payload(decode=True)
    return found if isinstance(found, bytes) else b""


def _decode(part: Message) -> str:
    data, charset = _content(part), (part.get_content_charset() or "utf-8").lower()
    try:
        return data.decode("utf-8" if charset in _SLOW_CODECS else charset, "replace")
    except (LookupError, ValueError):
        return data.decode("utf-8", "replace")


def strip_signature(text: str) -> str:
    """Remove a signature, which a line `-- ` begins."""
    return re.split(r"^-- $", text, maxsplit=1, flags=re.MULTILINE)[0].rstrip() or text


def strip_history(text: str) -> str:
    """Remove the quoted history at the end of a reply. Quotations with an answer below them stay."""
    if len(text) > MAX_PARSED:
        return text
    lines = text.split("\n")
    for number, following in itertools.pairwise(at for at, line in enumerate(lines) if line.strip()):
        if _SEPARATOR.fullmatch(lines[number].strip()) and _HEADER_LINE.match(lines[following]):
            lines = lines[:number]
            break
    end = len(lines)
    while end and (not lines[end - 1].strip() or lines[end - 1].startswith(">")):
        end -= 1
    if any(line.startswith(">") for line in lines[end:]):
        # The line "On Monday at 10:40, Ann wrote:" above the quotation, which clients break into up to three lines.
        start = end
        while start and end - start < 3 and lines[start - 1].strip() and not lines[start - 1].startswith(">"):
            start -= 1
        if start and lines[start - 1].strip():
            start = end - 1
        above = "\n".join(lines[start:end]).rstrip()
        if len(above) <= MAX_ATTRIBUTION and above.endswith(":") and _ORIGIN.search(above):
            lines = lines[:start]
    return "\n".join(lines).strip() or text
