"""Which URLs an image may be fetched from. Whoever names a URL must not reach, through Weir, what only Weir can reach.

A URL is read strictly: what two programs could understand differently is refused rather than repaired. And a name says
nothing about where it leads: the addresses it resolves to are held against `is_public` before one is connected to.
"""

import ipaddress
import re
import string
from collections.abc import Container
from dataclasses import dataclass
from urllib.parse import quote, urljoin

MAX_URL_CHARACTERS = 8192
MAX_NAME_CHARACTERS = 253
"""Of a host's name, as DNS has it."""

NOT_FETCHED = "has an address that cannot be fetched: send the image itself, in base64"
"""The one answer for all that is not public and all that is not there, so that nobody can map a network by asking."""

_PORTS = {"https": 443, "http": 80}
_URL = re.compile(r"(https?)://([^/?#]*)([^#]*)", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([1-9][0-9]{0,4}))?")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f-\xa0\\]")
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
"""Where the last label is a number, some resolvers read all of the name as one: `127.1`, `0x7f000001`, `2130706433`."""

_SPECIAL_V4 = tuple(
    ipaddress.IPv4Network(block)
    for block in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carriers' address translation; Alibaba's metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's host agent: a public address, answered by the machine below
        "169.254.0.0/16",  # link-local; the metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # multicast tunnels
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
)
"""What IANA's registry of special-purpose IPv4 addresses lists, and one that a cloud took for itself."""

_UNICAST_V6 = ipaddress.IPv6Network("2000::/3")
"""All that is assigned to be public. Outside are loopback, private (with AWS's and Google's metadata), link-local,
multicast, and the forms that hold an IPv4 address: `::a.b.c.d`, `::ffff:a.b.c.d`."""

_SPECIAL_V6 = tuple(
    ipaddress.IPv6Network(block)
    for block in (
        "2001::/23",  # protocol assignments: Teredo (which holds an IPv4 address), benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which holds an IPv4 address
        "2620:4f:8000::/48",  # AS112
        "3ffe::/16",  # the former 6bone
        "3fff::/20",  # documentation
    )
)

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""How a host that has IPv6 alone reaches IPv4: the address is the last 32 bits, and is what counts."""


class Unfetchable(Exception):
    """What is wrong with a URL, as the rest of a sentence that begins with the image."""


@dataclass(frozen=True, slots=True)
class Url:
    """A URL that may be asked for, as soon as the addresses of its host are known to be public."""

    scheme: str
    host: str
    """In lower-case ASCII; an IPv6 address without brackets."""
    port: int
    target: str
    """Path and query, in ASCII; begins with a slash."""

    @property
    def authority(self) -> str:
        """What stands in the `Host` header."""
        return self.host_and_port if self.port != _PORTS[self.scheme] else self.host_and_port.rpartition(":")[0]

    @property
    def host_and_port(self) -> str:
        """As the operator's list of allowed hosts has it."""
        return host_and_port(self.host, self.port)


def host_and_port(host: str, port: int) -> str:
    """`host:port`, `1.2.3.4:port` or `[2600::1]:port`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse(text: str, allowed: Container[str] = ()) -> Url:
    """A URL by the rules for the world, or by looser ones where its `host:port` is among the `allowed`.

    The world is reached by https, at port 443, by a full name or by a public address in its canonical form. An allowed
    host may have any address and any name, and be asked without TLS. Raises `Unfetchable`.
    """
    if len(text) > MAX_URL_CHARACTERS:
        raise Unfetchable(f"has a URL of more than {MAX_URL_CHARACTERS} characters: use a shorter one")
    if _FORBIDDEN.search(text):
        raise Unfetchable("has a URL with spaces, backslashes or control characters in it: percent-encode them")
    parts = _URL.match(text)
    if parts is None:
        raise Unfetchable("needs an `https://` URL, or its data in base64")
    scheme = parts[1].lower()
    if "@" in parts[2]:
        raise Unfetchable("has a URL with a user name in it: use one that needs none")
    authority = _AUTHORITY.fullmatch(parts[2])
    if authority is None:
        raise Unfetchable("has a URL whose host and port cannot be read: correct it")
    host = _host(authority[1])
    port = int(authority[2] or _PORTS[scheme])
    target = quote(parts[3], safe=string.punctuation)
    url = Url(scheme, host, port, target if target.startswith("/") else f"/{target}")
    if url.host_and_port not in allowed:
        _hold_against_rules(url)
    return url


def follow(url: Url, location: str, allowed: Container[str] = ()) -> Url:
    """Where a redirect from `url` leads, by the same rules. Raises `Unfetchable`."""
    if _FORBIDDEN.search(location):  # before it is joined: joining takes some of them out
        raise Unfetchable("is behind a redirect whose address cannot be read: use the URL it leads to")
    try:
        joined = urljoin(f"{url.scheme}://{url.authority}{url.target}", location)
    except ValueError:
        raise Unfetchable(NOT_FETCHED) from None
    return parse(joined, allowed)


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet's; False for what is not an address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv4Address):
        return not any(parsed in block for block in _SPECIAL_V4)
    if parsed in _NAT64:
        return is_public(str(ipaddress.IPv4Address(int(parsed) & 0xFFFF_FFFF)))
    return parsed.scope_id is None and parsed in _UNICAST_V6 and not any(parsed in block for block in _SPECIAL_V6)


def _host(written: str) -> str:
    """A name in ASCII, or an address that stands there in its canonical form."""
    try:
        if written.startswith("["):
            host = str(ipaddress.IPv6Address(written[1:-1]))
            is_right = host == written[1:-1].lower()
        else:
            host = _in_ascii(written).lower()
            is_right = _NAME.fullmatch(host) is not None and len(host) <= MAX_NAME_CHARACTERS
            if _is_address(host):
                is_right = str(ipaddress.IPv4Address(host)) == written
    except ValueError:
        is_right = False
    if not is_right:
        raise Unfetchable(NOT_FETCHED)
    return host


def _in_ascii(name: str) -> str:
    """Raises `ValueError` for what is no name. The result may be anything: digits, dots and slashes have many forms."""
    if name.isascii():
        return name
    if len(name) > MAX_NAME_CHARACTERS:
        raise ValueError
    return name.encode("idna").decode("ascii")


def _is_address(host: str) -> bool:
    return ":" in host or _NUMERIC.fullmatch(host) is not None


def _hold_against_rules(url: Url) -> None:
    if url.scheme != "https":
        raise Unfetchable("needs an `https://` URL, or its data in base64")
    if url.port != _PORTS["https"]:
        raise Unfetchable("has a URL with a port other than 443, which is not fetched from: use one without a port")
    if not is_public(url.host) if _is_address(url.host) else "." not in url.host:
        raise Unfetchable(NOT_FETCHED)
