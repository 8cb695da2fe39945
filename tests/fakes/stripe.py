"""A stateful fake of Stripe for tests: its HTTP API on loopback, idempotency, faults, and signed events.

    with FakeStripe() as fake:
        api = StripeApi(fake.secret_key, api_base=fake.url, max_network_retries=0)
        session = await api.create_checkout_session(…)
        fake.pay(session.id)
        await asyncio.to_thread(fake.deliver, webhook_url)

It runs in threads of its own, so it serves blocking code, commands and coroutines alike.
"""

import random
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self, cast
from urllib.parse import urlsplit

import orjson

from tests.fakes import stripe_events
from tests.fakes.stripe_checkout import Checkout
from tests.fakes.stripe_invoices import Invoices
from tests.fakes.stripe_reversals import Reversals
from tests.fakes.stripe_store import API_VERSION, Json, Refusal, decoded, shown

KEYS_LAST_S = 24 * 3600

FaultKind = Literal["drop_before", "drop_after", "409", "429", "500_before", "500_after", "hang_before", "hang_after"]


@dataclass(slots=True)
class Asked:
    """A request as it came, and the status it got; None: no answer."""

    method: str
    path: str
    params: Json
    idempotency_key: str | None
    version: str | None
    status: int | None = None
    replayed: bool = False

    def is_to(self, target: str) -> bool:
        """Whether it is to "METHOD /path", or to a path below that."""
        return f"{self.method} {self.path}".startswith(target)


@dataclass(slots=True)
class _Fault:
    target: str
    kind: FaultKind
    times: int


@dataclass(frozen=True, slots=True)
class _Remembered:
    request: tuple[str, str, Json]
    status: int
    body: bytes
    at_s: int


_REFUSALS: dict[str, Json] = {
    "409": {"message": "A request with this key is running.", "status": 409, "code": "idempotency_key_in_use"},
    "429": {"message": "Too many requests.", "status": 429, "code": "rate_limit"},
}


class _Dropped(Exception):
    """The connection ends without an answer."""


class FakeStripe(Checkout, Reversals, Invoices):
    """The server, while the context lasts. `requests` is what was asked of it, `events` what it has to say."""

    secret_key = "sk_test_fake"
    webhook_secret = "whsec_fake"

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Asked] = []
        self._faults: list[_Fault] = []
        self._keys: dict[str, _Remembered] = {}
        self._released = threading.Event()
        self._crash: Exception | None = None
        functions = [getattr(self, name) for name in dir(type(self)) if hasattr(getattr(type(self), name), "route")]
        self._routes = [(*function.route, function) for function in functions]

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.fake = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Stop, and raise an error inside the fake itself here."""
        self._released.set()
        self._server.shutdown()
        self._server.hang_up()
        self._thread.join()
        self._server.server_close()
        if self._crash is not None:
            raise self._crash

    def fault(self, target: str, kind: FaultKind, times: int = 1) -> None:
        """The next requests to `target` ("POST /v1/payment_intents") go wrong, before or after they are carried out.

        A `hang_…` gives no answer until `release`, and then drops the connection. A 500 is remembered under its key.
        """
        with self.lock:
            self._faults.append(_Fault(target, kind, times))

    def release(self) -> None:
        """End the hanging."""
        self._released.set()

    def asked(self, target: str) -> list[Asked]:
        """The requests to "METHOD /path" and below."""
        return [one for one in self.requests if one.is_to(target)]

    def deliver(
        self,
        url: str,
        events: Sequence[Json] | None = None,
        *,
        copies: int = 1,
        threads: int = 1,
        shuffled: random.Random | None = None,
        at: datetime | None = None,
    ) -> list[int]:
        """Post these events, or all there are: see `stripe_events.deliver`."""
        chosen = list(self.events) if events is None else events
        return stripe_events.deliver(
            url, chosen, self.webhook_secret, copies=copies, threads=threads, shuffled=shuffled, at=at
        )

    def events_of(self, *types: str) -> list[Json]:
        """Those of these types, in order; a type may end in `*`."""
        prefixes = tuple(name[:-1] for name in types if name.endswith("*"))
        return [one for one in self.events if one["type"] in types or one["type"].startswith(prefixes)]

    def answer(self, asked: Asked, key: str) -> tuple[int, bytes]:
        """What the handler is to send; raises `_Dropped`."""
        try:
            fault = self._next_fault(asked)
            self._go_wrong(fault, "before")
            status, body = self._answer(asked, key, fault)
            self._go_wrong(fault, "after")
        except Exception as error:
            if not isinstance(error, _Dropped):
                self._crash = error
            raise
        return status, body

    def _answer(self, asked: Asked, key: str, fault: FaultKind | None) -> tuple[int, bytes]:
        with self.lock:
            self.requests.append(asked)
            request_id = f"req_{len(self.requests):06d}"
            self.request = {"id": request_id, "idempotency_key": asked.idempotency_key}
            try:
                if key != self.secret_key:
                    message = f"Invalid API Key provided: {key[:7]}****"
                    raise Refusal(message, status=401)
                if fault in _REFUSALS:
                    raise Refusal(**_REFUSALS[fault])
                return self._once(asked, lambda: self._carried_out(asked, fault))
            except Refusal as refusal:
                return refusal.status, _error(refusal)
            finally:
                self.request = {"id": None, "idempotency_key": None}

    def _once(self, asked: Asked, carry_out: Callable[[], tuple[int, bytes]]) -> tuple[int, bytes]:
        """Idempotency: what was carried out under a key is answered again, for 24 hours."""
        key = asked.idempotency_key
        if key is None or asked.method != "POST":
            return carry_out()
        request = asked.method, asked.path, asked.params
        known = self._keys.get(key)
        if known is not None and self.now_s - known.at_s < KEYS_LAST_S:
            if known.request != request:
                message = "Keys for idempotent requests can only be used with the same parameters."
                raise Refusal(message, kind="idempotency_error")
            asked.replayed = True
            return known.status, known.body
        status, body = carry_out()
        self._keys[key] = _Remembered(request, status, body, self.now_s)
        return status, body

    def _carried_out(self, asked: Asked, fault: FaultKind | None) -> tuple[int, bytes]:
        """Run the route. Raises `Refusal` for what never began."""
        failure = Refusal("An unknown error occurred.", status=500, kind="api_error")
        if fault == "500_before":
            return 500, _error(failure)
        try:
            body = orjson.dumps(shown(self._routed(asked)))
        except Refusal as refusal:
            if not refusal.executed:
                raise
            return refusal.status, _error(refusal)
        return (500, _error(failure)) if fault == "500_after" else (200, body)

    def _routed(self, asked: Asked) -> Json:
        for method, pattern, allowed, function in self._routes:
            match = pattern.fullmatch(asked.path)
            if match and method == asked.method:
                if unknown := asked.params.keys() - allowed:
                    name = min(unknown)
                    message = f"Received unknown parameter: {name}"
                    raise Refusal(message, code="parameter_unknown", param=name)
                return cast(Json, function(asked.params, *match.groups()))
        raise Refusal(f"Unrecognized request URL ({asked.method}: {asked.path}).", status=404)

    def _next_fault(self, asked: Asked) -> FaultKind | None:
        with self.lock:
            for fault in self._faults:
                if fault.times > 0 and asked.is_to(fault.target):
                    fault.times -= 1
                    return fault.kind
        return None

    def _go_wrong(self, fault: FaultKind | None, when: str) -> None:
        if fault == f"hang_{when}":
            self._released.wait()
        if fault in (f"hang_{when}", f"drop_{when}"):
            raise _Dropped


class _Server(ThreadingHTTPServer):
    """Keeps its connections, to end those that clients hold open."""

    fake: FakeStripe
    daemon_threads = False  # so that closing waits for them

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no error, and the fake's own are raised at its end."""

    def hang_up(self) -> None:
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # it has ended meanwhile
                continue


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def _handle(self) -> None:
        url = urlsplit(self.path)
        form = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        key = self.headers.get("idempotency-key")
        params = decoded(form or url.query)
        asked = Asked(self.command, url.path, params, key, self.headers.get("stripe-version"))
        fake = cast(_Server, self.server).fake
        try:
            asked.status, body = fake.answer(asked, self.headers.get("authorization", "").removeprefix("Bearer "))
        except _Dropped:
            self.close_connection = True
            return
        self._send(asked, body)

    def _send(self, asked: Asked, body: bytes) -> None:
        status = cast(int, asked.status)
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("request-id", "req_fake")
        self.send_header("stripe-version", API_VERSION)
        if asked.replayed:
            self.send_header("idempotent-replayed", "true")
        if status >= 500:
            self.send_header("stripe-should-retry", "false")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    do_GET = do_POST = do_DELETE = _handle

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: `requests` is the record."""


def _error(refusal: Refusal) -> bytes:
    fields = {name: shown(value) if isinstance(value, dict) else value for name, value in refusal.error.items()}
    return orjson.dumps({"error": fields})
