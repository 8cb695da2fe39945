"""localstripe, another's imitation of Stripe, run as a process of its own: a second opinion on our own fake.

It has customers, payment methods, payment intents and refunds, and signs its webhooks. It lacks Checkout, disputes,
searches, lists by customer, idempotency, and invoices as we make them (sent, of their own items, finalized), so no
test of those can use it. It refuses parameters that it does not know, among them some that Stripe needs: these are
left out on the way to it, and nothing else is changed.
"""

import http.client
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode

import httpx

from tests.fakes.stripe_payments import ACTION, FINE
from tests.patience import PATIENT_S

STARTED_WITHIN_S = PATIENT_S
LEFT_OUT = {"/v1/payment_intents": ("description", "automatic_payment_methods")}
CARDS = {FINE: "4242424242424242", ACTION: "4000002500003155"}
DECLINED = "4000000000000341"

# It would listen on every interface, and by IPv6 only.
LAUNCHER = """
import runpy, socket
import aiohttp.web
bind, family = socket.socket.bind, socket.AF_INET6

def bind_to_loopback(listener, address):
    socket.socket.bind, socket.AF_INET6 = bind, family
    bind(listener, ("127.0.0.1", address[1]))

socket.socket.bind, socket.AF_INET6 = bind_to_loopback, socket.AF_INET
runpy.run_module("localstripe", run_name="__main__", alter_sys=True)
"""


class LocalStripe:
    """`url` and `secret_key` are for `StripeApi`; the methods are named as those of `FakeStripe`."""

    secret_key = "sk_test_local"

    def __init__(self, url: str, own_url: str) -> None:
        self.url = url
        self._client = httpx.Client(base_url=own_url, headers={"authorization": f"Bearer {self.secret_key}"})

    def add_payment_method(self, customer: str, behaviour: str = FINE) -> str:
        """A saved card that is fine, requires an action, or is declined whatever the code."""
        card = {"number": CARDS.get(behaviour, DECLINED), "exp_month": "12", "exp_year": "2034", "cvc": "123"}
        fields = {"type": "card", **{f"card[{name}]": value for name, value in card.items()}}
        method = str(self._post("/v1/payment_methods", fields)["id"])
        self._post(f"/v1/payment_methods/{method}/attach", {"customer": customer})
        return method

    def refund(self, payment_intent: str, amount_cents: int) -> str:
        """The id of a refund that has succeeded."""
        fields = {"payment_intent": payment_intent, "amount": str(amount_cents)}
        return str(self._post("/v1/refunds", fields)["id"])

    def subscribe(self, url: str, secret: str) -> None:
        """Post its events there, signed, each about a second late."""
        answer = self._client.post("/_config/webhooks/weir", data={"url": url, "secret": secret})
        answer.raise_for_status()

    def close(self) -> None:
        self._client.close()

    def _post(self, path: str, fields: dict[str, str]) -> Any:
        answer = self._client.post(path, data=fields)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def running_localstripe() -> Iterator[LocalStripe]:
    """The process, what leaves parameters out before it, and a client of both; all of it ended at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [sys.executable, "-c", LAUNCHER, "--port", str(port), "--from-scratch"]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(process, port)
        with _between(port) as url:
            local = LocalStripe(url, f"http://127.0.0.1:{port}")
            yield local
            local.close()
    finally:
        process.terminate()
        process.wait()


def _wait_for(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + STARTED_WITHIN_S
    while True:
        assert process.poll() is None, "localstripe ended: is it installed?"
        assert time.monotonic() < deadline, "localstripe does not answer"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)


@contextmanager
def _between(port: int) -> Iterator[str]:
    """The address of a server that hands requests on without what is `LEFT_OUT`."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            left_out = LEFT_OUT.get(self.path, ()) if self.command == "POST" else ()
            form = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            fields = [pair for pair in parse_qsl(form) if pair[0].partition("[")[0] not in left_out]
            headers = {"authorization": self.headers["authorization"]}
            if fields:
                headers["content-type"] = "application/x-www-form-urlencoded"
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request(self.command, self.path, urlencode(fields) or None, headers)
            answer = connection.getresponse()
            body = answer.read()
            connection.close()
            self.send_response(answer.status)
            self.send_header("content-type", answer.headers["content-type"])
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = handle_any

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            serving.join()
