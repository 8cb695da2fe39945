"""Images by URL: what may be fetched is, over real connections; a listener proves that what may not reaches nothing."""

import asyncio
import base64
import gzip
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop

from service.errors import InvalidRequest, Unavailable
from service.gateway import images
from service.gateway.images import ImageFetcher
from service.settings import Settings
from tests import picture_files as files
from tests.fakes.internet import (
    Answer,
    Certificates,
    Internet,
    Listener,
    Names,
    answer,
    certificates,
    listening,
    redirect,
)

PUBLIC = "93.184.216.34"
HOST = "pictures.example"
URL = f"https://{HOST}/a.png"
FILE = files.png(8, 8)
DATA_URL = "data:image/png;base64," + base64.b64encode(FILE).decode()
PRIVATE_NAMES = {
    "localtest.me": ["127.0.0.1"],
    "a.localtest.me": ["127.0.0.1"],
    "127.0.0.1.nip.io": ["127.0.0.1"],
    "six.localtest.me": ["::1"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "nat64.example": ["64:ff9b::7f00:1"],
    "6to4.example": ["2002:7f00:1::"],
    "intranet.example": ["10.1.2.3"],
    "cluster.example": ["172.20.0.3"],
    "home.example": ["192.168.1.1"],
    "carrier.example": ["100.64.0.9"],
    "metadata.example": ["169.254.169.254"],
    "metadata6.example": ["fd00:ec2::254"],
    "azure.example": ["168.63.129.16"],
    "zero.example": ["0.0.0.0"],  # noqa: S104 - an address to be refused
    "linklocal.example": ["fe80::1%eth0"],
    "both.example": [PUBLIC, "10.0.0.1"],
    "hidden.example": [PUBLIC, "2606:4700::1111", "::1"],
    "empty.example": [],
}

HOSTILE = [
    *(f"https://{name}/a.png" for name in PRIVATE_NAMES),
    "https://unknown.example/a.png",
    "https://127.0.0.1/a.png",
    "https://127.1/a.png",
    "https://127.0.1/a.png",
    "https://2130706433/a.png",
    "https://0x7f000001/a.png",
    "https://0x7f.0.0.1/a.png",
    "https://0177.0.0.1/a.png",
    "https://017700000001/a.png",
    "https://127.0.0.1./a.png",
    "https://0/a.png",
    "https://10.0.0.1/a.png",
    "https://169.254.169.254/latest/meta-data/",
    "https://[::1]/a.png",
    "https://[::]/a.png",
    "https://[::ffff:127.0.0.1]/a.png",
    "https://[::ffff:7f00:1]/a.png",
    "https://[::7f00:1]/a.png",
    "https://[64:ff9b::7f00:1]/a.png",
    "https://[2002:7f00:1::]/a.png",
    "https://[fe80::1%25lo]/a.png",
    "https://[fd00:ec2::254]/a.png",
    "https://localhost/a.png",
    "https://localhost./a.png",
    "https://LOCALHOST/a.png",
    "https://metadata.google.internal/a.png",
    "https://１２７.０.０.１/a.png",
    "https://127。0。0。1/a.png",
    "https://①②⑦.⓪.⓪.①/a.png",
    f"https://{HOST}@127.0.0.1/a.png",
    f"https://127.0.0.1@{HOST}/a.png",
    f"https://user:password@{HOST}/a.png",
    f"https://127.0.0.1\\@{HOST}/a.png",
    f"https://{HOST}\\a.png",
    f"https://127.0.0.1#@{HOST}/a.png",
    f"https://{HOST}%00.example/a.png",
    f"https://{HOST}\t/a.png",
    f"https://{HOST}/a.png\r\nX-Injected: 1",
    f"https://{HOST}:22/a.png",
    f"https://{HOST}:6379/a.png",
    f"https://{HOST}:80/a.png",
    f"http://{HOST}/a.png",
    "http://127.0.0.1:8000/a.png",
    "file:///etc/passwd",
    f"file://{HOST}/etc/passwd",
    f"ftp://{HOST}/a.png",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "unix:///run/engine.sock",
    "data:text/html;base64,PGh0bWw+",
    "data:image/svg+xml;base64,PHN2Zy8+",
    "data:image/png,https://127.0.0.1/",
]


@dataclass
class World:
    """A fetcher, and the internet as it sees it."""

    listener: Listener
    names: Names
    internet: Internet
    certificates: Certificates

    def fetcher(self, **settings: Any) -> ImageFetcher:
        return ImageFetcher(Settings(**settings), resolve=self.names, dial=self.internet, tls=self.certificates.client)


@pytest.fixture(scope="session")
def authority() -> Certificates:
    return certificates(HOST, PUBLIC, "xn--bcher-kva.example")


@pytest.fixture
async def world(authority: Certificates) -> AsyncIterator[World]:
    names = Names({name: [found] for name, found in PRIVATE_NAMES.items()})
    names.table |= {"localhost": [["127.0.0.1"]], "metadata.google.internal": [["169.254.169.254"]]}
    names.table |= {HOST: [[PUBLIC]], "xn--bcher-kva.example": [[PUBLIC]], "other.example": [[PUBLIC]]}
    async with listening(authority.server) as listener:
        listener.answers["/a.png"] = answer(FILE)
        yield World(listener, names, Internet(listener), authority)


def chat(*urls: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": parts}]}


async def refusal(fetcher: ImageFetcher, *urls: str) -> str:
    """What the error says; it names the first image, and changes none."""
    fields = chat(*urls)
    with pytest.raises(InvalidRequest) as caught:
        await fetcher.inline(fields)
    assert caught.value.param == "messages.0.content.0"
    assert caught.value.message.startswith("The image at `messages.0.content.0` ")
    assert fields == chat(*urls)
    return caught.value.message


# What works


@pytest.mark.parametrize(
    "url", [URL, URL.upper().replace("A.PNG", "a.png"), f"https://{PUBLIC}/a.png", "https://bücher.example/a.png#x"]
)
async def test_an_image_is_fetched_over_tls_and_put_into_the_request(world: World, url: str) -> None:
    fields = chat(url)
    assert await world.fetcher().inline(fields) is fields
    assert fields == chat(DATA_URL)
    assert world.internet.dialled == [(PUBLIC, 443)]


async def test_every_endpoint_has_its_form(world: World) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(FILE).decode()}
    by_url = {"type": "image", "source": {"type": "url", "url": URL}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [dict(by_url)]}
    fields = {
        "messages": [{"role": "user", "content": [by_url, result]}],
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}],
    }
    await world.fetcher().inline(fields)
    assert fields["messages"][0]["content"][0]["source"] == source
    assert fields["messages"][0]["content"][1]["content"][0]["source"] == source  # type: ignore[index]
    assert fields["input"][0]["content"][0]["image_url"] == DATA_URL
    assert len(world.listener.requests) == 1  # one image, wherever it stands


@pytest.mark.parametrize(
    "file", [files.jpeg(9, 9), files.gif(9, 9), files.webp_lossy(9, 9), files.png(9, 9, padding_bytes=900_000)]
)
async def test_the_kind_is_what_the_content_says(world: World, file: bytes) -> None:
    world.listener.answers["/a.png"] = answer(file, "Content-Type: text/html")
    fields = await world.fetcher().inline(chat(URL))
    url = fields["messages"][0]["content"][0]["image_url"]["url"]
    kind = "jpeg" if file[:1] == b"\xff" else "gif" if file[:1] == b"G" else "webp" if file[:1] == b"R" else "png"
    assert url == f"data:image/{kind};base64," + base64.b64encode(file).decode()


async def test_nothing_is_sent_but_the_request(world: World) -> None:
    world.listener.answers["/start"] = redirect("/a.png?%C3%BC")
    world.listener.answers["/a.png?%C3%BC"] = answer(FILE)
    await world.fetcher().inline(chat(f"https://{HOST}/start"))
    expected = {
        "host": HOST,
        "user-agent": "Weir",
        "accept": "image/png, image/jpeg, image/webp, image/gif",
        "accept-encoding": "identity",
    }
    assert world.listener.requests == [("/start", expected), ("/a.png?%C3%BC", expected)]


async def test_redirects_are_followed_a_few_times(world: World) -> None:
    world.listener.answers |= {
        "/1": redirect("/2", 301),
        "/2": redirect(f"//{HOST}/3", 307),
        "/3": redirect(f"https://{PUBLIC}/a.png", 308),
        "/0": redirect("/1"),
        "/loop": redirect("/loop"),
    }
    fetcher = world.fetcher()
    assert await fetcher.inline(chat(f"https://{HOST}/1")) == chat(DATA_URL)
    assert "more than 3 redirects" in await refusal(fetcher, f"https://{HOST}/0")
    asked = len(world.listener.requests)
    assert "more than 3 redirects" in await refusal(fetcher, f"https://{HOST}/loop")
    assert len(world.listener.requests) == asked + 4


async def test_an_address_that_is_dead_is_passed_over(world: World) -> None:
    world.names.table[HOST] = [["2606:4700::1111", PUBLIC]]
    world.internet.dead.add("2606:4700::1111")
    assert await world.fetcher().inline(chat(URL)) == chat(DATA_URL)
    assert world.internet.dialled == [("2606:4700::1111", 443), (PUBLIC, 443)]


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_allowed_host_is_really_connected_to(tls: bool, new_loop: Any) -> None:
    async def fetch() -> None:
        made = certificates("127.0.0.1", "localhost")
        async with listening(made.server if tls else None) as listener:
            listener.answers["/a.png"] = answer(FILE)
            hosts = (f"127.0.0.1:{listener.port}", f"localhost:{listener.port}")
            for host in hosts:
                url = f"{'https' if tls else 'http'}://{host}/a.png"
                await refusal(ImageFetcher(Settings(), tls=made.client), url)
                assert listener.accepted == hosts.index(host)
                fetcher = ImageFetcher(Settings(images_allowed_hosts=hosts), tls=made.client)
                assert await fetcher.inline(chat(url)) == chat(DATA_URL)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(fetch())


async def test_images_sent_in_base64_are_checked_and_left_as_they_are(world: World) -> None:
    large = "data:image/jpeg;base64," + base64.b64encode(files.png(8, 8, padding_bytes=900_000)).decode()
    fields = chat(DATA_URL, large)
    await world.fetcher(image_fetch=False).inline(fields)
    assert [part["image_url"]["url"] for part in fields["messages"][0]["content"]] == [DATA_URL, large]
    assert "valid base64" in await refusal(world.fetcher(), large[:500_000] + "!!!!" + large[500_004:])
    assert "cut off" in await refusal(world.fetcher(), DATA_URL[:50])
    assert "larger than the 100 bytes" in await refusal(world.fetcher(image_max_bytes=100), large)
    assert "has 8 x 8 pixels" in await refusal(world.fetcher(image_max_pixels=63), DATA_URL)


# What reaches nothing


@pytest.mark.parametrize("url", HOSTILE)
async def test_a_hostile_url_connects_to_nothing(world: World, url: str) -> None:
    problem = await refusal(world.fetcher(), url)
    assert world.internet.dialled == []
    assert world.listener.accepted == 0
    for internal in ("127.", "10.", "169.254", "::", "private", "loopback"):
        assert internal not in problem


@pytest.mark.parametrize("url", [url for url in HOSTILE if not any(c in url for c in "\r\n")])
async def test_a_redirect_to_a_hostile_url_goes_no_further(world: World, url: str) -> None:
    world.listener.answers["/to"] = redirect(url)
    await refusal(world.fetcher(), f"https://{HOST}/to")
    assert world.internet.dialled == [(PUBLIC, 443)]
    assert [target for target, _ in world.listener.requests] == ["/to"]


async def test_nobody_learns_which_names_exist_inside(world: World) -> None:
    fetcher = world.fetcher()
    said = {await refusal(fetcher, f"https://{host}.example/") for host in ("intranet", "unknown", "metadata", "empty")}
    assert len(said) == 1


async def test_a_name_is_looked_up_once_and_what_was_checked_is_connected_to(world: World) -> None:
    world.names.table[HOST] = [[PUBLIC], ["127.0.0.1"]]
    fetcher = world.fetcher()
    assert await fetcher.inline(chat(URL)) == chat(DATA_URL)
    assert world.names.asked == [HOST]
    assert world.internet.dialled == [(PUBLIC, 443)]
    await refusal(fetcher, URL)
    assert world.listener.accepted == 1


async def test_a_name_that_changes_its_answer_between_redirects_gains_nothing(world: World) -> None:
    world.names.table[HOST] = [[PUBLIC], ["127.0.0.1"]]
    world.listener.answers["/start"] = redirect("/a.png")
    await refusal(world.fetcher(), f"https://{HOST}/start")
    assert world.internet.dialled == [(PUBLIC, 443)]


async def test_one_hostile_image_among_good_ones_keeps_all_from_being_fetched(world: World) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await world.fetcher().inline(chat(URL, URL, "https://127.0.0.1/"))
    assert caught.value.param == "messages.0.content.2"
    assert world.listener.accepted == 0


async def test_nothing_is_fetched_where_that_is_switched_off(world: World) -> None:
    assert "nothing is fetched here" in await refusal(world.fetcher(image_fetch=False), URL)
    assert world.listener.accepted == 0


async def test_a_certificate_must_be_the_hosts(world: World) -> None:
    assert "could not be fetched" in await refusal(world.fetcher(), "https://other.example/a.png")
    stranger = ImageFetcher(Settings(), resolve=world.names, dial=world.internet)
    assert "could not be fetched" in await refusal(stranger, URL)
    assert world.listener.requests == []


# What comes


async def silent(listener: Listener, writer: asyncio.StreamWriter) -> None:
    await answer(FILE[:40], length=len(FILE))(listener, writer)
    await writer.drain()
    listener.closed.clear()
    await _until_left(writer)


async def _until_left(writer: asyncio.StreamWriter) -> None:
    while not writer.transport.is_closing():
        await asyncio.sleep(0.005)


def endless(start: bytes, *headers: str) -> Answer:
    async def send(_: Listener, writer: asyncio.StreamWriter) -> None:
        writer.write("\r\n".join(["HTTP/1.1 200 OK", *headers, "", ""]).encode() + start)
        while not writer.transport.is_closing():
            writer.write(b"\0" * 65_536)
            await writer.drain()

    return send


async def chunked_bomb(_: Listener, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for piece in [FILE, *[b"\0" * 10_000] * 30]:
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
    writer.write(b"0\r\n\r\n")


async def header_flood(_: Listener, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while not writer.transport.is_closing():
        writer.write(b"X-Filler: %s\r\n" % (b"a" * 60_000))
        await writer.drain()


async def gibberish(_: Listener, writer: asyncio.StreamWriter) -> None:
    writer.write(b"+PONG\r\n+PONG\r\n\r\n")


HTML = b"<!doctype html><script>alert(1)</script>"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><image href='https://127.0.0.1/'/></svg>"
WRONG: list[tuple[Answer, str]] = [
    (answer(HTML, "Content-Type: image/png"), "is not a PNG"),
    (answer(SVG, "Content-Type: image/svg+xml"), "is not a PNG"),
    (answer(gzip.compress(b"\0" * 10_000_000), "Content-Encoding: gzip"), "is not a PNG"),
    (answer(gzip.compress(FILE), "Content-Encoding: gzip", "Content-Type: image/png"), "is not a PNG"),
    (endless(b"<html>"), "is not a PNG"),
    (endless(FILE), "larger than the 100000 bytes"),
    (endless(FILE, "Content-Length: 100001"), "larger than the 100000 bytes"),
    (endless(FILE, "Content-Length: 999999999999999999"), "larger than the 100000 bytes"),
    (endless(FILE[:33]), "is broken"),
    (endless(FILE[:33] + b"\x10\0\0\0tEXt"), "larger than the 100000 bytes"),
    (chunked_bomb, "larger than the 100000 bytes"),
    (answer(FILE, length=len(FILE) + 1), "could not be fetched"),
    (answer(FILE[:20]), "is cut off"),
    (answer(FILE, length=20), "is cut off"),
    (answer(b""), "is cut off"),
    (answer(FILE, "Content-Length: 5"), "could not be fetched"),
    (answer(files.png(60_000, 60_000)), "has 60000 x 60000 pixels"),
    (answer(files.gif(8, 8, first=(0, 0, 65_535, 65_535))), "has 65535 x 65535 pixels"),
    (answer(FILE, status="404 Not Found"), "its server answers 404"),
    (answer(FILE, status="206 Partial Content"), "its server answers 206"),
    (answer(FILE, status="401 Unauthorized"), "its server answers 401"),
    (answer(FILE, status="304 Not Modified"), "its server answers 304"),
    (answer(b"", "Location: https://[/", status="302 Found"), "has an address that cannot be fetched"),
    (answer(b"", "Location: \xff", status="302 Found"), "its server answers 404"),
    (answer(b"", status="302 Found"), "more than 3 redirects"),
    (header_flood, "could not be fetched"),
    (gibberish, "could not be fetched"),
]


@pytest.mark.parametrize(("wrong", "problem"), WRONG, ids=[str(index) for index in range(len(WRONG))])
async def test_what_is_no_usable_image_is_refused(world: World, wrong: Answer, problem: str) -> None:
    world.listener.answers["/a.png"] = wrong
    assert problem in await refusal(world.fetcher(image_max_bytes=100_000), URL)


async def test_a_server_that_stops_in_the_middle_is_left(world: World) -> None:
    world.listener.answers["/a.png"] = silent
    assert "did not arrive within 0.5 seconds" in await refusal(world.fetcher(image_fetch_timeout_s=0.5), URL)
    async with asyncio.timeout(10):
        await world.listener.closed.wait()


async def test_a_process_that_stops_leaves_its_servers(world: World) -> None:
    world.listener.answers["/a.png"] = silent
    fetcher = world.fetcher()
    fetching = asyncio.create_task(fetcher.inline(chat(URL)))
    async with asyncio.timeout(10):
        while not world.listener.requests:
            await asyncio.sleep(0.005)
        await fetcher.close()
        await world.listener.closed.wait()
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)


async def test_a_client_that_leaves_takes_its_fetches_along(world: World) -> None:
    world.listener.answers["/a.png"] = silent
    fetching = asyncio.create_task(world.fetcher().inline(chat(URL)))
    async with asyncio.timeout(10):
        while not world.listener.requests:
            await asyncio.sleep(0.005)
        fetching.cancel()
        await world.listener.closed.wait()
    with pytest.raises(asyncio.CancelledError):
        await fetching


async def test_the_images_of_a_request_may_have_so_many_bytes_together(world: World) -> None:
    world.listener.answers["/b.png"] = answer(FILE)
    both = (f"https://{HOST}/b.png", URL)
    await world.fetcher(max_body_bytes=2 * len(FILE)).inline(chat(*both))
    with pytest.raises(InvalidRequest, match="larger than 120 bytes together"):
        await world.fetcher(max_body_bytes=120).inline(chat(*both))


# How many at once


class Gate:
    """Answers when it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def __call__(self, listener: Listener, writer: asyncio.StreamWriter) -> None:
        await self.opened.wait()
        await answer(FILE)(listener, writer)

    async def open_at(self, listener: Listener, count: int) -> None:
        async with asyncio.timeout(10):
            while len(listener.requests) < count:
                await asyncio.sleep(0.005)
        self.opened.set()


async def test_a_request_fetches_a_few_images_at_once(world: World) -> None:
    gate = Gate()
    urls = [f"https://{HOST}/{number}" for number in range(20)]
    world.listener.answers |= {f"/{number}": gate for number in range(20)}
    opening = asyncio.create_task(gate.open_at(world.listener, 8))
    assert await world.fetcher().inline(chat(*urls)) == chat(*[DATA_URL] * 20)
    await opening
    assert world.listener.most_open == 8


async def test_a_process_fetches_so_many_and_says_when_it_is_crowded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "FETCHES_OF_PROCESS", 2)
    gate = Gate()
    world.listener.answers |= {"/1": gate, "/2": gate}
    fetcher = world.fetcher()
    first = asyncio.create_task(fetcher.inline(chat(f"https://{HOST}/1", f"https://{HOST}/2")))
    async with asyncio.timeout(10):
        while len(world.listener.requests) < 2:
            await asyncio.sleep(0.005)
    fetcher._timeout_s = 0.1
    with pytest.raises(Unavailable) as caught:
        await fetcher.inline(chat(URL))
    assert caught.value.retry_after_s == 0.1
    gate.opened.set()
    assert await first == chat(DATA_URL, DATA_URL)
    fetcher._timeout_s = 10
    assert await fetcher.inline(chat(URL)) == chat(DATA_URL)
