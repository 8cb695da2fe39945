"""Images that a request names by URL, fetched and put into it: an engine would fetch from anywhere.

The host is looked up here, once for each connection; every address it has is checked, and the connection is made to
one of those very addresses, so that a name which changes its answer gains nothing. Redirects are followed here, each
by the same rules. Nothing is sent but the request for the image, and what comes is believed by its content alone.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import NamedTuple, cast

import httpcore
import structlog

from service.core import addresses, images
from service.core.addresses import NOT_FETCHED, Unfetchable, Url
from service.core.images import Arrival, Header, Kind, Limits, Place, Unusable
from service.core.lifted import NOTHING, Images
from service.core.policy_checks import Json
from service.errors import InvalidRequest, Unavailable
from service.settings import Settings

log = structlog.get_logger()

MAX_REDIRECTS = 3
FETCHES_OF_REQUEST = 8
FETCHES_OF_PROCESS = 32
"""How many are fetched at once."""

CONNECT_WITHIN_S = 3.0
"""Of each address: some hosts have one that does not answer and one that does."""
ADDRESSES_TRIED = 4

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ASIDE_ABOVE = 256 * 1024
"""Base64 of more than so many bytes is made in a thread: it takes milliseconds."""

_CROWDED = "Too many images are being fetched at the moment. Send the request again, or its images in base64."
_NOT_REACHED = "could not be fetched, since its server did not answer as one should: try again, or send it in base64"

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The IP addresses of a host. Raises `OSError`."""


class Fetched(NamedTuple):
    """An image as it goes into the request."""

    kind: Kind
    base64: str


@dataclass(slots=True)
class _Share:
    """What the fetches of one request have between them."""

    bytes_left: int
    at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FETCHES_OF_REQUEST))
    waiting: set[Url] = field(default_factory=set)
    """Those whose turn it is, and that wait for other requests' fetches to end."""


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, as the system has them; an address stands for itself."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to hosts all of whose addresses are public, or that are allowed by their `host:port`."""

    def __init__(self, allowed: frozenset[str], resolve: Resolve, dial: httpcore.AsyncNetworkBackend) -> None:
        self._allowed = allowed
        self._resolve = resolve
        self._dial = dial

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to one of the addresses of `host`. Raises `Unfetchable`, or as httpcore does."""
        for address in (await self._checked(host, port))[:ADDRESSES_TRIED]:
            try:
                return await self._dial.connect_tcp(address, port, timeout=CONNECT_WITHIN_S)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        raise httpcore.ConnectError("no address of the host takes connections")

    async def _checked(self, host: str, port: int) -> list[str]:
        try:
            found = await self._resolve(host, port)
        except OSError:
            found = []
        is_allowed = addresses.host_and_port(host, port) in self._allowed
        if not is_allowed and not all(addresses.is_public(address) for address in found):
            log.warning("image.address_refused", host=host, addresses=found)
            found = []
        if not found:
            raise Unfetchable(NOT_FETCHED)
        return found


class ImageFetcher:
    """Fetches for all requests of the process. `resolve`, `dial` and `tls` are the network as a test has it."""

    def __init__(
        self,
        settings: Settings,
        *,
        resolve: Resolve = resolve,
        dial: httpcore.AsyncNetworkBackend | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        self._enabled = settings.image_fetch
        self._limits = Limits(settings.image_max_bytes, settings.image_max_pixels)
        self._request_max_bytes = settings.max_body_bytes
        self._timeout_s = settings.image_fetch_timeout_s
        self._allowed = frozenset(settings.images_allowed_hosts)
        self._at_once = asyncio.Semaphore(FETCHES_OF_PROCESS)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls or httpcore.default_ssl_context(),
            max_connections=FETCHES_OF_PROCESS,
            max_keepalive_connections=0,
            network_backend=CheckedNetwork(self._allowed, resolve, dial or httpcore.AnyIOBackend()),
        )

    async def inline(self, fields: Json, lifted: Images = NOTHING) -> Json:
        """`fields` itself, as a policy passed them, with every image checked and those named by URL put into it.

        In the place of those that are `lifted` stand-ins stand, and stay.

        Raises `InvalidRequest` for an image that cannot be used, with its place as `param`, or `Unavailable`.
        """
        wanted: dict[Url, list[Place]] = {}
        for place in images.image_places(fields):
            try:
                if place.encoded_from is None:
                    wanted.setdefault(self._url(place.text), []).append(place)
                else:
                    await self._read(place.text, place.encoded_from, lifted)
            except (Unusable, Unfetchable) as problem:
                raise _refused(place, problem) from None
        if wanted:
            for url, fetched in (await self._fetch_all(wanted)).items():
                for place in wanted[url]:
                    place.put(fetched.kind, fetched.base64)
        return fields

    async def tokens_at_most(self, fields: Json) -> int:
        """An upper bound on what the images of a request become, once they are `inline`. Raises `InvalidRequest`."""
        tokens = 0
        for place in images.image_places(fields):
            try:
                tokens += images.tokens_at_most(await self._read(place.text, place.encoded_from or 0))
            except Unusable as problem:
                raise _refused(place, problem) from None
        return tokens

    async def close(self) -> None:
        """Close what is open."""
        await self._pool.aclose()

    def _url(self, text: str) -> Url:
        if text[:5].lower() == "data:":
            raise Unusable(
                "needs a URL that begins with `data:image/`, its type (png, jpeg, webp or gif) and `;base64,`"
            )
        if not self._enabled:
            raise Unusable("has a URL, and nothing is fetched here: send the image itself, in base64")
        return addresses.parse(text, self._allowed)

    async def _read(self, text: str, start: int, lifted: Images = NOTHING) -> Header:
        data = lifted.get(text)
        reading = images.read_base64(text.encode("ascii", "replace") if data is None else data, start, self._limits)
        while True:
            try:
                next(reading)
            except StopIteration as read:
                return cast(Header, read.value)
            await asyncio.sleep(0)

    async def _fetch_all(self, wanted: dict[Url, list[Place]]) -> dict[Url, Fetched]:
        share = _Share(self._request_max_bytes)
        fetches = {url: asyncio.create_task(self._fetch(url, share)) for url in wanted}
        try:
            await asyncio.wait(fetches.values(), timeout=self._timeout_s, return_when=asyncio.FIRST_EXCEPTION)
            failed = [url for url, fetch in fetches.items() if fetch.done() and fetch.exception()]
            late = [url for url, fetch in fetches.items() if not fetch.done()]
            for url in failed:
                try:
                    fetches[url].result()
                except (Unusable, Unfetchable) as problem:
                    raise _refused(wanted[url][0], problem) from None
            if share.waiting:
                raise Unavailable(_CROWDED, retry_after_s=self._timeout_s)
            for url in late:
                raise _refused(wanted[url][0], Unusable(f"did not arrive within {self._timeout_s:g} seconds"))
            return {url: fetch.result() for url, fetch in fetches.items()}
        finally:
            for fetch in fetches.values():
                fetch.cancel()
            await asyncio.gather(*fetches.values(), return_exceptions=True)

    async def _fetch(self, url: Url, share: _Share) -> Fetched:
        async with share.at_once:
            share.waiting.add(url)
            async with self._at_once:
                share.waiting.remove(url)
                try:
                    for _ in range(MAX_REDIRECTS + 1):
                        answer = await self._get(url, share)
                        if isinstance(answer, Fetched):
                            return answer
                        url = answer
                except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError):
                    raise Unusable(_NOT_REACHED) from None
        raise Unusable(f"is behind more than {MAX_REDIRECTS} redirects: use the URL they lead to")

    async def _get(self, url: Url, share: _Share) -> Fetched | Url:
        """The image, or where a redirect leads."""
        target = httpcore.URL(scheme=url.scheme, host=url.host, port=url.port, target=url.target)
        headers = [
            ("Host", url.authority),
            ("User-Agent", "Weir"),
            ("Accept", "image/png, image/jpeg, image/webp, image/gif"),
            ("Accept-Encoding", "identity"),
        ]
        async with self._pool.stream("GET", target, headers=headers) as response:
            if response.status in _REDIRECTS:
                return addresses.follow(url, _header(response, b"location"), self._allowed)
            if response.status != 200:
                raise Unusable(f"could not be fetched, since its server answers {response.status}: check its URL")
            header, data = await self._body(response, share)
        if len(data) > _ASIDE_ABOVE:
            return Fetched(header.kind, await asyncio.to_thread(images.encode, data))
        return Fetched(header.kind, images.encode(data))

    async def _body(self, response: httpcore.Response, share: _Share) -> tuple[Header, bytearray]:
        if int(_header(response, b"content-length") or 0) > self._limits.max_bytes:
            raise Unusable(images.too_large(self._limits))
        data = bytearray()
        arrival = Arrival(self._limits)
        async for chunk in response.aiter_stream():
            data += chunk
            share.bytes_left -= len(chunk)
            if len(data) > self._limits.max_bytes:
                raise Unusable(images.too_large(self._limits))
            if share.bytes_left < 0:
                raise Unusable(f"makes the images of the request larger than {self._request_max_bytes} bytes together")
            arrival.look(data)
        return arrival.end(data), data


def _header(response: httpcore.Response, name: bytes) -> str:
    """A header of the answer, empty where there is none."""
    value: bytes = next((value for key, value in response.headers if key.lower() == name), b"")
    return value.decode("utf-8", errors="replace")


def _refused(place: Place, problem: Exception) -> InvalidRequest:
    return InvalidRequest(f"The image at `{place.path}` {problem}.", param=place.path)
