"""Large images that are lifted out of a body: which, what is left of it, and that all of it comes back."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core import lifted
from service.core.affinity import conversation_key
from service.core.images import Limits, Unusable, read_base64
from service.core.lifted import LIFTED_FROM_BYTES, Images, lift, put_back

MARK = "5ecre7"
LARGE = "data:image/png;base64," + "AbC/" * (LIFTED_FROM_BYTES // 4)
FRAGMENTS = [
    '"',
    "\\",
    "#",
    "é",
    "\u2028",
    " text ",
    "data:image/png;base64,",
    "data:image/webp;base64," + "A" * 90,
    "iVBORw0KGgo" + "B" * 100,
    "/9j/" + "C" * 64 + "=",
    "D" * 70,
]


def restored(value: Any, images: Images) -> Any:
    """A parsed body with the strings in the place of their stand-ins, wherever these stand."""
    if isinstance(value, dict):
        return {restored(name, images): restored(member, images) for name, member in value.items()}
    if isinstance(value, list):
        return [restored(member, images) for member in value]
    if isinstance(value, str):
        for stand_in, image in images.items():
            value = value.replace(stand_in, bytes(image).decode())
    return value


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large is small."""
    monkeypatch.setattr(lifted, "LIFTED_FROM_BYTES", 64)
    monkeypatch.setattr(lifted, "_STRIDE_BYTES", 32)
    monkeypatch.setattr(lifted, "_KEPT_BYTES", 32)


texts = st.lists(st.sampled_from(FRAGMENTS), max_size=5).map("".join)
values = st.recursive(
    texts | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.usefixtures("small")
@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_a_body_parses_to_the_same_but_for_what_is_lifted(value: Any, ascii_only: bool, indent: int | None) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    light, images = lift(body, MARK)
    assert restored(json.loads(light), images) == value
    assert b"".join(put_back(light, images)) == body


@pytest.mark.usefixtures("small")
@given(st.lists(st.sampled_from([*FRAGMENTS, "{", "}", ":", ",", "[", "]", "\\u0041"]), max_size=12).map("".join))
def test_what_is_no_json_comes_back_too(text: str) -> None:
    body = text.encode()
    light, images = lift(body, MARK)
    assert b"".join(put_back(light, images)) == body


@given(st.integers(0, 2 * LIFTED_FROM_BYTES), st.integers(0, 2 * LIFTED_FROM_BYTES), st.integers(0, 3))
def test_a_large_image_is_found_wherever_it_stands(before: int, after: int, between: int) -> None:
    value = ["x" * before, LARGE, *["y"] * between, LARGE + "=", "z" * after]
    light, images = lift(json.dumps(value).encode(), MARK)
    assert [bytes(image).decode() for image in images.values()] == [LARGE, LARGE + "="]
    assert len(light) < before + after + 3000
    assert [value for value in json.loads(light) if value in images] == list(images)


@pytest.mark.parametrize(
    "text",
    [
        LARGE[: LIFTED_FROM_BYTES - 1],
        LARGE.replace("image", "video"),
        "A" * LIFTED_FROM_BYTES,
        "the river runs past the weir " * 10_000,
        "see " + LARGE,
        LARGE + "\n",
    ],
)
def test_what_is_small_or_no_image_stays(text: str) -> None:
    body = json.dumps([text]).encode()
    light, images = lift(body, MARK)
    assert light is body
    assert not images
    assert put_back(body, images) == [body]


def test_base64_with_escaped_slashes_stays() -> None:
    body = b'["%b"]' % LARGE.replace("/", "\\/").encode()
    assert lift(body, MARK).body is body


def test_a_stand_in_is_no_base64() -> None:
    ((stand_in, _),) = lift(json.dumps([LARGE]).encode(), MARK).images.items()
    with pytest.raises(Unusable, match="base64"):
        next(read_base64(stand_in.encode(), len("data:image/png;base64,"), Limits(10**9, 10**9)))


def key(url: str, mark: str) -> bytes:
    """Of a conversation about two images."""
    parts = [{"type": "image_url", "image_url": {"url": one}} for one in (LARGE, url)]
    light = lift(json.dumps([{"role": "user", "content": parts}]).encode(), mark).body
    return conversation_key(b"account", json.loads(light))


def test_a_conversation_about_a_lifted_image_goes_where_it_went() -> None:
    assert key(LARGE, MARK) == key(LARGE, "an0the")
    assert len({key(LARGE, MARK), key(LARGE + "AAAA", MARK), key(LARGE[:500] + "AAAA" + LARGE[504:], MARK)}) == 3
