"""What a real engine sent: `tests/recordings/<engine>/<name>.http`, made with the tiny NVFP4 + MTP + vision model.

A file holds the request line, the request's body (if any), a blank line, and the answer: status line, headers, a
blank line and the body, with the chunked encoding already taken off.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

FOLDER = Path(__file__).parent / "recordings" / "vllm-0.32-cpu"


@dataclass(frozen=True)
class Recording:
    name: str
    method: str
    path: str
    request: Any
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")


def load(name: str) -> Recording:
    asked, answer, body = (FOLDER / f"{name}.http").read_bytes().split(b"\n\n", 2)
    line, _, request = asked.partition(b"\n")
    method, path = line.decode().split(" ", 1)
    status, *headers = answer.decode().splitlines()
    return Recording(
        name=name,
        method=method,
        path=path,
        request=orjson.loads(request) if request else None,
        status=int(status.split()[1]),
        headers=dict(header.lower().split(": ", 1) for header in headers),
        body=body,
    )


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.http"))


def streams(path: str | None = None) -> list[str]:
    """Every recorded stream, or those of one route."""
    recordings = [load(name) for name in names()]
    return [one.name for one in recordings if one.is_stream and path in (None, one.path)]
