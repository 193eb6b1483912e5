"""Post replies to an address of the settings.

The host name is resolved once and that address is used, so that a second look-up cannot return a private address.
Redirects are not followed, proxies are not used, and the body of the response is not read.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import httpx2

from holdfast import errors
from holdfast.gateway import platform
from holdfast.gateway.platforms.http import requests

TIMEOUT_SECONDS = 20.0
_RETRIED = frozenset({408, 425, 429})
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def check_url(url: str, allow_private: bool) -> None:
    """Raise SettingInvalid if replies cannot or must not be posted to an address."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise errors.SettingInvalid(f"{errors.quote(url)} is not an address.") from None
    if not host or parts.username is not None or parts.password is not None or not url.isascii() or " " in url:
        raise errors.SettingInvalid(f"Replies cannot be posted to {errors.quote(url)}.")
    if parts.scheme != "https" and not (parts.scheme == "http" and requests.is_loopback(host)):
        raise errors.SettingInvalid("Replies are posted by https; by http only to this machine.")
    if _is_ip(host) and not requests.is_loopback(host) and not may_reach(host, allow_private):
        raise errors.SettingInvalid(f"{host} is a private address. Set allow_private to allow it.")


def may_reach(address: str, allow_private: bool) -> bool:
    """Return whether replies may be posted to an IP address. Pure."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        # These contain an IPv4 address.
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return may_reach(str(inner), allow_private)
    if found.is_multicast or found.is_unspecified or found.is_reserved or found.is_link_local:
        return False
    return allow_private or found.is_global


class CallbackPoster:
    """Posts replies. `lookup` resolves a host name."""

    def __init__(self, lookup: Callable[[str, int], list[str]] | None = None) -> None:
        self._lookup = lookup or _resolve

    async def post(self, url: str, headers: dict[str, str], body: bytes, allow_private: bool) -> None:
        """Post a reply. Raises SendRefused (final) or SendFailed (retried)."""
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        address = await self._address(host, port, allow_private)
        target = httpx2.URL(url).copy_with(host=address, fragment=None)
        sent = {"host": parts.netloc, "content-type": "application/json", "user-agent": "holdfast", **headers}
        try:
            async with (
                httpx2.AsyncClient(timeout=TIMEOUT_SECONDS, follow_redirects=False, trust_env=False) as client,
                client.stream("POST", target, content=body, headers=sent, extensions={"sni_hostname": host}) as answer,
            ):
                _check_status(answer.status_code, answer.headers)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise errors.SendFailed(f"The callback could not be reached: {type(error).__name__}.") from None

    async def _address(self, host: str, port: int, allow_private: bool) -> str:
        try:
            found = [host] if _is_ip(host) else await asyncio.to_thread(self._lookup, host, port)
        except OSError:
            found = []
        for address in found:
            is_local = requests.is_loopback(host) and requests.is_loopback(address)
            if not is_local and not may_reach(address, allow_private):
                raise errors.SendRefused("The callback has a private address, which is not allowed.")
        if not found:
            raise errors.SendFailed("The host name of the callback could not be resolved.")
        return found[0]


def _check_status(status: int, headers: Mapping[str, str]) -> None:
    if 200 <= status < 300:
        return
    if status >= 500 or status in _RETRIED:
        wait = platform.parse_retry_after(headers)
        raise errors.SendFailed(f"The callback returned status {status}.", retry_after=wait)
    raise errors.SendRefused(f"The callback returned status {status}.")


def _resolve(host: str, port: int) -> list[str]:
    return [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
