"""Redact API keys, tokens and passwords in a text.

A secret is recognized by its format (the prefixes of well-known services, a signed token, a private key) or by a label
next to it. Hashes, UUIDs and paths are not secrets. Most texts have none: a pattern is searched only if one of its
hints occurs in the text, which is many times cheaper.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

MARK = "[redacted]"

# Repetitions are bounded or anchored, so that no text causes quadratic backtracking.
_PREFIXED = re.compile(
    r"(?<![A-Za-z0-9\-])(?:"
    r"sk-(?=[\w\-]{0,99}\d)[\w\-]{16,}|(?:sk|pk|rk|whsec)_(?:live_|test_)?(?=\w{0,99}\d)[A-Za-z0-9]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w\-]{16,}|xox[abeoprs]-[\w\-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])|AIza[\w\-]{30,}|hf_[A-Za-z0-9]{20,}|npm_[A-Za-z0-9]{30,}"
    r"|pypi-[\w\-]{30,}|gsk_[A-Za-z0-9]{20,}|xai-[A-Za-z0-9]{20,}|ya29\.[\w\-]{20,}|dop_v1_[a-f0-9]{40,}"
    r"|SG\.[\w\-]{16,}\.[\w\-]{16,}|\d{8,10}:AA[\w\-]{32,})"
)
_SIGNED = re.compile(r"(?<![\w\-])eyJ[\w\-]{8,}\.[\w\-]{8,}(?:\.[\w\-]*)?")
_BEARER = re.compile(r"(?i:\b((?:bearer|basic)\s{1,3}))(?=[^\s\"',]{0,200}[\d=])[A-Za-z0-9._~+/=\-]{12,}")
_PRIVATE = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?:\\[nr]|[\s\"'+,]){0,20}(?:(?:Proc-Type|DEK-Info|Version|Comment): [^\n\\]{0,200}|[A-Za-z0-9+/=]{20,}))+"
    r"(?:(?:\\[nr]|[\s\"'+,]){0,20}[A-Za-z0-9+/=]{1,80}(?=(?:\\[nr]|[\s\"'+,]){0,20}-----END))?"
    r"(?:(?:\\[nr]|[\s\"'+,]){0,20}-----END [A-Z0-9 ]{0,30}-----)?"
)
_USERINFO = re.compile(r"(\b[a-zA-Z][\w+.\-]{1,20}://[^\s/:@'\"<>]{0,64}:)([^\s/@'\"<>]{1,256})(?=@)")
_PASSWORD = re.compile(
    r"((?:passw(?:or)?d|passwd|passphrase|passwort|kennwort|contraseña|mot de passe|密码|パスワード|\bpwd|\bpin)"
    r"(?:_?hash)?\\?[\"'`]?(?:\s{0,3}(?:=>|:=|[:=：])\s{0,3}|\s{1,3}(?:is|ist|es|est)\s{1,3}))"
    r"(\\?[\"'`]?)([^\s\"'`,;&<>()\[\]{}\\]{4,})"
)
_LABELLED = re.compile(
    r"((?:api[_\- ]?key|access[_\- ]?key(?:[_\- ]?id)?|secret(?:[_\- ]?(?:access[_\- ]?)?key)?|private[_\- ]?key"
    r"|encryption[_\- ]?key|signing[_\- ]?key|auth[_\- ]?token|token|credential|authorization)\\?[\"'`]?"
    r"(?:\s{0,3}(?:=>|:=|[:=：])\s{0,3}|\s{1,3}is\s{1,3}))(\\?[\"'`]?)([a-z0-9+/_.~=!@#$%^*\-]{8,})"
)
_NEAR_LABEL = re.compile(
    r"(\b(?:secret|token|key|credential|password|passphrase)s?\b[^\n]{0,24}?(?<![\w+/=.\-]))"
    r"()([a-z0-9+/_\-]{24,200}={0,2})(?![\w+/=\-])"
)

# Texts in the place of a value that are not secrets.
_NO_VALUE = re.compile(
    r"(?i)[*.x•_\-]+|\$.*|%.*|none|null|true|false|nil|undefined|string|str|required|optional|missing|invalid"
    r"|expired|changed?|wrong|here|env|os\.environ.*|process\.env.*|redacted|self\..*|settings\..*|config\..*"
)
_HASH = re.compile(r"[0-9a-f]{7,64}|[0-9A-F]{7,64}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class _Kind(msgspec.Struct, frozen=True):
    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    put: Callable[[Sequence[str], str], str]
    lowered: bool = False
    """Whether to search in the lower-case text, which is several times faster than ignoring case."""


def redact(text: str, mark: str = MARK) -> str:
    """Replace each secret in a text with a mark; labels and other text are kept."""
    lowered = _lower(text)
    for kind in _KINDS:
        if any(map(lowered.__contains__, kind.hints)):
            text, lowered = _replace(kind, text, lowered, mark)
    return text


def _lower(text: str) -> str:
    """Return the text in lower case, with the same length."""
    small = text.lower()
    return small if len(small) == len(text) else "".join(char.lower() if char.isascii() else char for char in text)


def _replace(kind: _Kind, text: str, lowered: str, mark: str) -> tuple[str, str]:
    pieces, end = [], 0
    for found in kind.pattern.finditer(lowered if kind.lowered else text):
        groups = [text[begin:until] for begin, until in found.regs]
        put = kind.put(groups, mark)
        if put != groups[0]:
            pieces += [text[end : found.start()], put]
            end = found.end()
    if not pieces:
        return text, lowered
    changed = "".join([*pieces, text[end:]])
    return changed, _lower(changed)


def _redact_whole(_: Sequence[str], mark: str) -> str:
    return mark


def _redact_after_label(found: Sequence[str], mark: str) -> str:
    return found[1] + mark


def _redact_password(found: Sequence[str], mark: str) -> str:
    label, quote, value = found[1], found[2], found[3]
    spoken = label.rstrip()[-1] not in "=:：>"
    if _NO_VALUE.fullmatch(value) or (spoken and not quote and not any(map(str.isdigit, value))):
        return found[0]
    return label + quote + mark


def _redact_labelled(found: Sequence[str], mark: str) -> str:
    value = found[3]
    mixed = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    if not mixed or _NO_VALUE.fullmatch(value):
        return found[0]
    return found[1] + found[2] + mark


def _redact_near_label(found: Sequence[str], mark: str) -> str:
    return found[1] + mark if _is_random(found[3]) else found[0]


def _is_random(value: str) -> bool:
    """Return whether a word looks random, and is not a hash, a path or compound words."""
    if _HASH.fullmatch(value) or not re.search(r"\d", value) or not re.search(r"[a-z]", value):
        return False
    if not re.search(r"[A-Z]", value) or value.count("/") > 2:
        return False
    return _entropy(value) > 3.7


def _entropy(value: str) -> float:
    shares = [count / len(value) for count in Counter(value).values()]
    return -sum(share * math.log2(share) for share in shares)


_OPENINGS = (
    "sk- sk_ pk_ rk_ whsec_ ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- xox akia asia aiza hf_ npm_ pypi- gsk_ "
    "xai- ya29. dop_v1_ sg. :aa"
)
_PASSWORD_HINTS = (
    *("passw", "passphrase", "pwd", "pin:", "pin is ", "pin=", "kennwort", "contraseña", "mot de passe"),
    *("密码", "パスワード"),
)
_KINDS = (
    _Kind(("private key",), _PRIVATE, _redact_whole),
    _Kind(tuple(_OPENINGS.split()), _PREFIXED, _redact_whole),
    _Kind(("eyj",), _SIGNED, _redact_whole),
    _Kind(("bearer", "basic"), _BEARER, _redact_after_label),
    _Kind(("://",), _USERINFO, _redact_after_label),
    _Kind(_PASSWORD_HINTS, _PASSWORD, _redact_password, True),
    _Kind(("key", "secret", "token", "credential", "authorization"), _LABELLED, _redact_labelled, True),
    _Kind(("key", "secret", "token", "credential", "password", "passphrase"), _NEAR_LABEL, _redact_near_label, True),
)
