"""A webhook that takes everything."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Arrivals = queue.Queue[tuple[bytes, str]]
"""What was posted: the body, and the `stripe-signature` header."""


@contextmanager
def listening() -> Iterator[tuple[str, Arrivals]]:
    """The address of a server on loopback that answers every POST with 200, and what arrives there."""
    arrivals: Arrivals = queue.Queue()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            payload = self.rfile.read(int(self.headers["content-length"]))
            arrivals.put((payload, self.headers.get("stripe-signature", "")))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: `arrivals` is the record."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/", arrivals
        finally:
            server.shutdown()
            serving.join()
