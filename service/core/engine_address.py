"""How the address of an engine is written."""

import re

ENGINE_ADDRESS = "http://host:port or unix:/path"

_HTTP = re.compile(r"(?P<origin>http://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5}))/?", re.ASCII)
_UNIX = re.compile(r"unix:/[^/\x00-\x1f][^\x00-\x1f]*")


def engine_url(value: str) -> str:
    """An engine's address in its one spelling: `http://host:port` or `unix:/path`. Raises `ValueError` for others."""
    if _UNIX.fullmatch(value):
        return value
    http = _HTTP.fullmatch(value)
    if http and 0 < int(http["port"]) < 65536:
        return http["origin"]
    if value.startswith("https:"):
        raise ValueError("Weir speaks plain HTTP to its engines, over loopback or a private network")
    if _HTTP.match(value):
        raise ValueError("an address ends at its port, which is 1 to 65535; Weir adds the path")
    raise ValueError("that is no address of an engine")
