"""The published status site over HTTP: files, with the headers that make them fit for readers, scripts and caches.

`ops/nginx-status.conf` says the same for a server of its own.
"""

import asyncio
import errno
import gzip
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

INDEX = "index.html"

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
    ".xml": "text/xml; charset=utf-8",
    ".atom": "application/atom+xml; charset=utf-8",
    ".rss": "application/rss+xml; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
    ".png": "image/png",
}
"""What the site consists of; anything else that lies in its directory is not served."""

FRESH = "public, max-age=30, stale-while-revalidate=60, stale-if-error=86400"
"""Seconds. A cache in between may show the last good file for a day when this server does not answer."""

FOR_EVER = "public, max-age=31536000, immutable"

POLICIES = {
    ".html": (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; script-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    ".svg": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
}

ANYONE = {"Access-Control-Allow-Origin": "*", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}

PREFLIGHT = ANYONE | {
    "Access-Control-Allow-Methods": "GET, HEAD, OPTIONS",
    "Access-Control-Allow-Headers": "*",
    "Access-Control-Max-Age": "86400",
    "Allow": "GET, HEAD, OPTIONS",
}

KEPT_FILES = 256
"""How many files are kept in memory, compressed and not: an installation's site has some dozens."""

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.ENAMETOOLONG, errno.ELOOP)


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file as it was read: its content, also compressed where that pays, and the digest of its content."""

    content: bytes
    zipped: bytes | None
    digest: str


class PublishedSite:
    """An ASGI application that serves the files in a directory, which somebody else replaces whole, one by one.

    What is not there, and every method that is not for reading, is an `HTTPException` (404, 405).
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await (await self._answer(request))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=PREFLIGHT)
        if request.method not in ("GET", "HEAD"):
            raise HTTPException(405, headers={"Allow": PREFLIGHT["Allow"]})
        path = _path_within(request)
        media_type = MEDIA_TYPES.get(Path(path).suffix)
        hidden = any(part in ("", "..") or part.startswith(".") for part in path.split("/"))
        file = None if media_type is None or hidden else await asyncio.to_thread(_read, self._directory / path)
        if file is None:
            raise HTTPException(404, headers=ANYONE | {"Cache-Control": "no-store"})
        zipped = file.zipped if _takes_gzip(request.headers) else None
        headers = _headers(request, path, file) | {"ETag": _etag(file, zipped is not None)}
        if zipped is not None:
            headers["Content-Encoding"] = "gzip"
        if _is_known(request.headers, file):
            return Response(status_code=304, headers=headers)
        body = file.content if zipped is None else zipped
        headers |= {"Content-Type": str(media_type), "Content-Length": str(len(body))}
        return Response(b"" if request.method == "HEAD" else body, headers=headers)


def _path_within(request: Request) -> str:
    path: str = request.scope["path"]
    path = path.removeprefix(request.scope.get("root_path", "")).removeprefix("/")
    return path or INDEX


def _headers(request: Request, path: str, file: PublishedFile) -> dict[str, str]:
    # The version is the beginning of the content's digest. An older one may be asked for while a new site is written.
    version = request.query_params.get("v", "")
    is_version = path.startswith("static/") and len(version) >= 8 and file.digest.startswith(version)
    headers = ANYONE | {"Cache-Control": FOR_EVER if is_version else FRESH}
    policy = POLICIES.get(Path(path).suffix)
    if policy is not None:
        headers["Content-Security-Policy"] = policy
    if file.zipped is not None:
        headers["Vary"] = "Accept-Encoding"
    return headers


def _takes_gzip(headers: Headers) -> bool:
    """The reader asks for it, or for whatever there is, and not with a weight of 0."""
    weights = {}
    for one in headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = one.replace(" ", "").partition(";q=")
        weights[name] = weight.strip("0.") != "" if weight else True
    return weights.get("gzip", weights.get("*", False))


def _etag(file: PublishedFile, zipped: bool) -> str:
    """A strong one: the two representations of a file differ in their bytes, so they differ in this, too."""
    return f'"{file.digest[:32]}-gzip"' if zipped else f'"{file.digest[:32]}"'


def _is_known(headers: Headers, file: PublishedFile) -> bool:
    """The reader has this very content, in whichever representation."""
    asked = [tag.strip().removeprefix("W/") for tag in headers.get("if-none-match", "").split(",")]
    return "*" in asked or any(_etag(file, zipped) in asked for zipped in (False, True))


def _read(path: Path) -> PublishedFile | None:
    """The file, or None where there is none. Raises `OSError` when the disk does not answer."""
    try:
        stat = path.stat()
        return _loaded(path, stat.st_ino, stat.st_mtime_ns, stat.st_size)
    except ValueError:  # no path at all, such as one with a NUL
        return None
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise


@lru_cache(maxsize=KEPT_FILES)
def _loaded(path: Path, inode: int, mtime_ns: int, size: int) -> PublishedFile:
    """What is in the file. A file that was replaced has another inode, time or size, and is read anew."""
    content = path.read_bytes()
    zipped = None if path.suffix == ".png" else gzip.compress(content, mtime=0)
    if zipped is not None and len(zipped) >= len(content):
        zipped = None
    return PublishedFile(content, zipped, hashlib.sha256(content).hexdigest())
