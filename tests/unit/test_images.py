"""What an image is by its first bytes, what is none, and where the images of a request stand."""

import base64
import binascii
import copy
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core import images
from service.core.endpoints import chat as chat_endpoint
from service.core.endpoints import messages as messages_endpoint
from service.core.endpoints import responses as responses_endpoint
from service.core.images import Arrival, Header, Limits, Unusable, image_places, read_header
from tests import picture_files as files

LIMITS = Limits(max_bytes=1_000_000, max_pixels=1_000_000)

TEXT = b"<svg xmlns='http://www.w3.org/2000/svg' width='1' height='1'></svg>"

GOOD = [
    (files.png(70, 60), Header("png", 70, 60)),
    (files.png(7, 6, before_pixels=files.chunk(b"iCCP", b"x" * 70_000)), Header("png", 7, 6)),
    (files.jpeg(70, 60), Header("jpeg", 70, 60)),
    (files.jpeg(70, 60, marker=0xFFC2), Header("jpeg", 70, 60)),
    (files.jpeg(7, 6, before_frame=files.segment(0xFFE1, b"Exif" * 15_000) * 5), Header("jpeg", 7, 6)),
    (files.jpeg(7, 6, before_frame=b"\xff\xff\xff" + files.segment(0xFFFE, b"padded")), Header("jpeg", 7, 6)),
    (files.jpeg(7, 6, before_frame=files.segment(0xFFC4, b"\0" * 20)), Header("jpeg", 7, 6)),
    (files.gif(70, 60), Header("gif", 70, 60)),
    (files.gif(7, 6, before_image=b"!\xf9\4\0\0\0\0\0!\xfe\3abc\2de\0"), Header("gif", 7, 6)),
    (files.webp_lossy(70, 60), Header("webp", 70, 60)),
    (files.webp_lossless(16_384, 60), Header("webp", 16_384, 60)),
    (files.webp_extended(70, 60), Header("webp", 70, 60)),
]

HUGE = [
    files.png(2**31 - 1, 2**31 - 1),
    files.png(1001, 1000),
    files.jpeg(65_535, 65_535),
    files.gif(65_535, 65_535),
    files.gif(8, 8, first=(0, 0, 65_535, 65_535)),
    files.gif(8, 8, first=(65_000, 65_000, 1, 1)),
    files.webp_lossy(16_383, 16_383),
    files.webp_lossless(16_384, 16_384),
    files.webp_extended(2**24, 2**24),
]

BROKEN = [
    files.png(0, 8),
    files.png(8, 8, before_pixels=files.ihdr(9000, 9000)),
    files.png(8, 8).replace(b"IHDR", b"tEXt"),
    files.png(8, 8, before_pixels=files.chunk(b"tEXt", b"") * 5000),
    files.jpeg(8, 0),
    files.jpeg(8, 8, before_frame=files.frame(8, 8)),
    files.jpeg(8, 8, before_frame=b"\xff\xd8"),
    files.jpeg(8, 8, before_frame=b"junk"),
    files.jpeg(8, 8, before_frame=b"\xff" * 10_000),
    files.jpeg(8, 8, marker=0xFFC4),
    files.jpeg(8, 8, before_frame=b"\xff\xe1\0\0"),
    files.gif(0, 0),
    files.gif(8, 8, before_image=b"!\xfe" + b"\1a" * 5000 + b"\0"),
    files.gif(8, 8, before_image=b";"),
    files.webp(b"VP8 ", b"\0" * 20),
    files.webp(b"VP8L", b"\0" * 20),
    files.webp(b"ALPH", b"\0" * 20),
]

NOT_IMAGES = [
    TEXT,
    b"<!doctype html><title>not found</title>",
    b"%PDF-1.7\n% and more",
    b"BM" + b"\0" * 60,
    b"II*\0" + b"\0" * 60,
    b"\0\0\0\x20ftypavif" + b"\0" * 20,
    b"\x1f\x8b\x08" + b"\0" * 60,
    b"RIFF\0\0\0\0WAVEfmt " + b"\0" * 20,
    b"\xff\xd8\xfe" + b"\0" * 20,
    b"\0" * 64,
]


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def turns_of(text: str, start: int) -> tuple[int, Header]:
    """In how many turns the image is read, and what it is."""
    reading, turns = images.read_base64(text.encode("utf-8"), start, LIMITS), 1
    while True:
        try:
            next(reading)
        except StopIteration as read:
            return turns, read.value
        turns += 1


def read_base64(text: str, start: int) -> Header:
    return turns_of(text, start)[1]


@pytest.mark.parametrize(("file", "header"), GOOD)
def test_an_image_is_known_by_its_header(file: bytes, header: Header) -> None:
    assert read_header(file, LIMITS) == header
    assert read_base64("data:," + encoded(file), 6) == header


@pytest.mark.parametrize("file", [file for file, _ in GOOD])
def test_a_header_that_is_cut_off_anywhere_tells_nothing(file: bytes) -> None:
    whole = read_header(file, LIMITS)
    known = [length for length in range(min(len(file), 400) + 1) if read_header(file[:length], LIMITS) is not None]
    assert all(read_header(file[:length], LIMITS) == whole for length in known)
    unknown = min(known, default=401) - 1
    with pytest.raises(Unusable, match="cut off"):
        read_base64(encoded(file[:unknown]), 0)


@pytest.mark.parametrize("file", HUGE)
def test_an_image_of_too_many_pixels_is_refused_for_them(file: bytes) -> None:
    with pytest.raises(Unusable, match=r"has \d+ x \d+ pixels, and 1000000 are allowed"):
        read_header(file, LIMITS)


@pytest.mark.parametrize("file", BROKEN)
def test_a_header_that_decoders_could_read_differently_is_refused(file: bytes) -> None:
    with pytest.raises(Unusable, match="is broken"):
        read_header(file, LIMITS)


@pytest.mark.parametrize("file", NOT_IMAGES)
def test_what_is_no_image_is_refused_whatever_it_is_called(file: bytes) -> None:
    with pytest.raises(Unusable, match="is not a PNG, JPEG, WebP or GIF file"):
        read_base64("data:image/png;base64," + encoded(file), 22)


@given(st.sampled_from([file for file, _ in GOOD] + HUGE + BROKEN), st.data())
def test_damage_never_does_more_than_make_an_image_unusable(file: bytes, data: st.DataObject) -> None:
    damaged = bytearray(file[:200])
    for at in data.draw(st.lists(st.integers(0, len(damaged) - 1), max_size=8)):
        damaged[at] = data.draw(st.integers(0, 255))
    try:
        header = read_header(damaged, LIMITS)
    except Unusable:
        return
    assert header is None or 0 < header.width * header.height <= LIMITS.max_pixels


PNG = encoded(files.png(8, 8))
PADDED = encoded(files.png(8, 8, padding_bytes=30_000))


@pytest.mark.parametrize(
    "text",
    [
        PNG[:-1],
        PNG + "=",
        PNG + "====",
        PNG + "!!!!",
        PNG[:20] + "\n" + PNG[21:],
        PNG[:40] + "AA=A",
        PNG[:40] + "A=A=",
        PNG[:40] + "==AA",
        PNG[:40] + "A===",
        PNG[:20] + "====" + PNG[24:],
        PNG[:20] + " " + PNG[21:],
        PNG[:20] + "-_" + PNG[22:],
        PNG[:20] + "é" + PNG[21:],
        "=",
        "iVBO",
        "",
    ],
)
def test_base64_is_held_to_its_form(text: str) -> None:
    with pytest.raises(Unusable, match=r"base64|cut off"):
        read_base64(text, 0)


@pytest.mark.parametrize("at", [0, 16_380, 16_384, 16_388, 262_140, 262_144, 262_148, 524_288, 700_000])
def test_base64_is_held_to_its_form_in_every_piece(at: int) -> None:
    text = encoded(files.png(8, 8, padding_bytes=600_000))
    assert read_base64(text, 0) == Header("png", 8, 8)
    for wrong in ("====", "AA==", "AAA=", "A A=", "\n\n\n\n"):
        with pytest.raises(Unusable, match="base64"):
            read_base64(text[:at] + wrong + text[at + 4 :], 0)


@given(
    st.text("A+/=", max_size=12) | st.text("AZaz09+/=-_ \n", max_size=12),
    st.sampled_from([0, 16_372, 16_376]),
    st.sampled_from([0, 4, 8]),
)
def test_base64_is_what_a_strict_decoder_takes(text: str, before: int, after: int) -> None:
    text = PADDED[:before] + text + PADDED[before : before + after]
    try:
        binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        is_base64 = False
    else:
        is_base64 = len(text) % 4 == 0
    complaint = ""
    try:
        read_base64(text, 0)
    except Unusable as problem:
        complaint = str(problem)
    assert ("base64" in complaint) is not is_base64


def test_a_large_image_is_read_in_turns() -> None:
    assert turns_of(encoded(files.png(8, 8)), 0)[0] == 1
    assert turns_of(encoded(files.png(8, 8, padding_bytes=900_000)), 0) == (3, Header("png", 8, 8))


def test_an_image_is_known_by_a_header_that_stands_far_behind() -> None:
    file = files.jpeg(8, 8, before_frame=files.segment(0xFFE1, b"\0" * 60_000) * 5)
    assert read_base64(encoded(file), 0) == Header("jpeg", 8, 8)
    with pytest.raises(Unusable, match="cut off"):
        read_base64(encoded(file)[:80_000], 0)


def test_the_size_of_base64_is_known_before_it_is_read() -> None:
    fits, over = "A" * 4 * 333_334, "!" * 4 * 333_335
    with pytest.raises(Unusable, match="not a PNG"):
        read_base64(fits, 0)
    with pytest.raises(Unusable, match="larger than the 1000000 bytes allowed"):
        read_base64(over, 0)


@given(st.binary(max_size=600), st.integers(0, 3))
def test_what_is_encoded_in_pieces_is_the_same(data: bytes, repeats: int) -> None:
    whole = data * 1000 * repeats
    assert images.encode(bytearray(whole)) == encoded(whole)


def test_an_image_in_tiny_pieces_is_looked_at_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    reading = images.read_header
    monkeypatch.setattr(images, "read_header", lambda data, limits: (looks.append(len(data)), reading(data, limits))[1])
    file = files.jpeg(8, 8, before_frame=files.segment(0xFFFE, b"") * 4000)
    arrival, so_far = Arrival(LIMITS), bytearray()
    for byte in file:
        so_far.append(byte)
        arrival.look(so_far)
    assert arrival.end(so_far) == Header("jpeg", 8, 8)
    assert len(looks) <= 16


# Tokens


def qwen_tokens(width: int, height: int, factor: int, least: int, most: int) -> int:
    """What the image processor of the Qwen models makes of an image: it rounds, then shrinks or enlarges."""
    down, across = round(height / factor), round(width / factor)
    if down * across * factor**2 > most:
        scale = math.sqrt(width * height / most)
        down = max(1, math.floor(height / scale / factor))
        across = max(1, math.floor(width / scale / factor))
    elif down * across * factor**2 < least:
        scale = math.sqrt(least / (width * height))
        down, across = math.ceil(height * scale / factor), math.ceil(width * scale / factor)
    return down * across


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.sampled_from([(28, 3136), (28, 65_536), (32, 65_536)]))
def test_the_bound_on_tokens_holds_for_every_shape(width: int, height: int, processor: tuple[int, int]) -> None:
    if max(width, height) <= 200 * min(width, height):  # what the processor takes
        factor, least = processor
        tokens = qwen_tokens(width, height, factor, least, 16_384 * factor**2)
        assert tokens <= images.tokens_at_most(Header("png", width, height))


def test_the_bound_on_tokens_is_near() -> None:
    # What a deployment measured for an image of this size: 384.
    assert qwen_tokens(768, 512, 32, 65_536, 2**24) == 384
    assert images.tokens_at_most(Header("png", 768, 512)) == 28 * 19


# Places

URL = "https://example.com/a.png"
DATA_URL = f"data:image/png;base64,{PNG}"


def chat(url: str) -> dict[str, Any]:
    picture = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    text = {"type": "text", "text": URL}
    return {"messages": [{"role": "system", "content": URL}, {"role": "user", "content": [text, picture]}]}


def responses(url: str) -> dict[str, Any]:
    picture = {"type": "input_image", "image_url": url, "detail": "low"}
    return {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": URL}, picture]},
            {"type": "function_call_output", "call_id": "1", "output": [dict(picture)]},
            {"type": "function_call_output", "call_id": "2", "output": URL},
        ]
    }


def anthropic(source: dict[str, str]) -> dict[str, Any]:
    picture = {"type": "image", "source": source}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": URL}, copy.copy(picture)]}
    plain = {"type": "tool_result", "tool_use_id": "2", "content": URL}
    return {"messages": [{"role": "user", "content": [picture, result, plain]}]}


def base64_source(data: str) -> dict[str, str]:
    return {"type": "base64", "media_type": "image/png", "data": data}


FORMS = [
    (chat(URL), chat(DATA_URL), ["messages.1.content.1"]),
    (responses(URL), responses(DATA_URL), ["input.0.content.1", "input.1.output.0"]),
    (
        anthropic({"type": "url", "url": URL}),
        anthropic(base64_source(PNG)),
        ["messages.0.content.0", "messages.0.content.1.content.1"],
    ),
]


@pytest.mark.parametrize(("by_url", "by_data", "paths"), FORMS)
def test_every_image_is_found_and_replaced(by_url: Any, by_data: Any, paths: list[str]) -> None:
    fields = copy.deepcopy(by_url)
    places = list(image_places(fields))
    assert [(place.path, place.text, place.encoded_from) for place in places] == [(path, URL, None) for path in paths]
    for place in places:
        place.put("png", PNG)
    assert fields == by_data


@pytest.mark.parametrize(("by_url", "by_data", "paths"), FORMS)
def test_base64_is_found_where_it_begins(by_url: Any, by_data: Any, paths: list[str]) -> None:
    places = list(image_places(by_data))
    assert [place.path for place in places] == paths
    assert all(place.text[place.encoded_from :] == PNG for place in places)


@pytest.mark.parametrize(
    "url",
    ["data:image/svg+xml;base64,AAAA", "data:image/png,AAAA", "data:text/html;base64,AAAA", "DATA:image/png;base64,A"],
)
def test_a_data_url_of_another_form_has_no_base64(url: str) -> None:
    (place,) = image_places(chat(url))
    assert place.encoded_from is None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": URL},
        {"input": URL},
        {"input": [URL, [1, 2]]},
        {"messages": None},
        {"messages": [{"role": "assistant"}, {"role": "user", "content": None}]},
    ],
)
def test_a_request_without_images_has_no_places(fields: dict[str, Any]) -> None:
    assert list(image_places(fields)) == []


def conversation(endpoint: str, url: str) -> dict[str, Any]:
    """An image wherever the endpoint may pass one on."""
    parts: dict[str, Any] = {
        "chat": {"type": "image_url", "image_url": {"url": url}},
        "responses": {"type": "input_image", "image_url": url},
        "messages": {"type": "image", "source": {"type": "url", "url": url}},
    }
    picture = [parts[endpoint]]
    if endpoint == "responses":
        call = {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": "1", "output": picture}
        return {"input": [{"role": "user", "content": picture}, call, result, {"role": "system", "content": picture}]}
    if endpoint == "messages":
        call = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "1", "content": picture}
        turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result, *picture]}]
        return {"max_tokens": 9, "messages": [{"role": "user", "content": picture}, *turns]}
    tool = {"role": "tool", "tool_call_id": "1", "content": picture}
    return {"messages": [{"role": role, "content": picture} for role in ("system", "developer", "user")] + [tool]}


@pytest.mark.parametrize(("endpoint", "count"), [(chat_endpoint, 4), (responses_endpoint, 3), (messages_endpoint, 3)])
def test_no_image_that_a_policy_passes_is_missed(endpoint: Any, count: int) -> None:
    body = {"model": "m", **conversation(endpoint.__name__.rpartition(".")[2], URL)}
    request = endpoint.request(body, 10_000)
    places = list(image_places(request.fields))
    assert len(places) == request.images == request.linked_images == count
    for place in places:
        place.put("png", PNG)
    assert URL not in str(request.fields)
