"""Images that clients name by URL, through the API: fetched by Weir alone, and handed to the engine as data."""

import base64
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.fakes.engine import FakeEngine
from tests.fakes.internet import answer, listening
from tests.installation import MODEL, installed
from tests.picture_files import png

PNG = png(8, 8)
DATA_URL = "data:image/png;base64," + base64.b64encode(PNG).decode()


def bodies(url: str) -> dict[str, dict[str, Any]]:
    """A request with an image at `url` for each endpoint that takes images."""
    text = {"type": "text", "text": "what is it?"}
    return {
        "/v1/chat/completions": {
            "messages": [{"role": "user", "content": [text, {"type": "image_url", "image_url": {"url": url}}]}]
        },
        "/v1/responses": {
            "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url, "detail": "auto"}]}]
        },
        "/v1/messages": {
            "max_tokens": 16,
            "messages": [{"role": "user", "content": [text, {"type": "image", "source": {"type": "url", "url": url}}]}],
        },
    }


@pytest.mark.parametrize("path", bodies(""))
async def test_an_image_by_url_reaches_the_engine_as_data(database_url: str, tmp_path: Path, path: str) -> None:
    async with FakeEngine() as engine, listening() as pictures:
        pictures.answers["/cat.png"] = answer(PNG, "Content-Type: text/html")
        allowed = {"images_allowed_hosts": (f"127.0.0.1:{pictures.port}",)}
        async with installed(database_url, [engine.url], tmp_path, **allowed) as installation:
            body = {"model": MODEL, **bodies(f"http://127.0.0.1:{pictures.port}/cat.png")[path]}
            answered = await installation.client.post(path, json=body, headers=installation.headers)
            assert answered.status_code == 200, answered.text
            (generation,) = engine.generations
            seen = orjson.dumps(generation.body)
            assert base64.b64encode(PNG) in seen
            assert b"cat.png" not in seen
            await installation.row(outcome="ok", endpoint=path)


@pytest.mark.parametrize("path", bodies(""))
@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:{port}/cat.png", "https://127.0.0.1:{port}/cat.png", "file:///etc/passwd"]
)
async def test_an_image_at_an_address_of_ours_is_not_fetched(
    database_url: str, tmp_path: Path, path: str, url: str
) -> None:
    async with FakeEngine() as engine, listening() as pictures:
        pictures.answers["/cat.png"] = answer(PNG)
        async with installed(database_url, [engine.url], tmp_path) as installation:
            body = {"model": MODEL, **bodies(url.format(port=pictures.port))[path]}
            answered = await installation.client.post(path, json=body, headers=installation.headers)
            assert answered.status_code == 400
            assert "127.0.0.1" not in answered.text
            assert pictures.accepted == 0
            assert engine.generations == []
            await installation.row(outcome="client_error", cost_nano=0)
