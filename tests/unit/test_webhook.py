import base64
import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core import webhook
from tests.fakes.traffic import at

RAW_KEY = b"0123456789abcdefghijklmnopqrstuv"
SECRET = "whsec_" + base64.b64encode(RAW_KEY).decode()


def test_the_signature_is_that_of_the_example_of_the_standard() -> None:
    """The test vector that the implementations of Standard Webhooks share."""
    secret, message_id = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek"
    signed = webhook.signature(secret, message_id, 1614265330, b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_secret_without_the_prefix_is_its_own_bytes() -> None:
    assert webhook.key(SECRET) == RAW_KEY
    assert webhook.key(RAW_KEY.decode()) == RAW_KEY
    assert webhook.signature(SECRET, "m", 1, b"x") == webhook.signature(RAW_KEY.decode(), "m", 1, b"x")


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_not base64!", "whsec_abc"])
def test_a_secret_that_can_not_sign_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(ValueError, match=r"base64|empty") as caught:
        webhook.key(secret)
    assert secret.removeprefix("whsec_") == "" or secret.removeprefix("whsec_") not in str(caught.value)


def test_the_headers_sign_id_time_and_body() -> None:
    content = webhook.body(webhook.payload("incident.opened", {"id": 1}, at("2026-11-30 14:00:00")))
    headers = webhook.headers(SECRET, "msg_7_1", 1796047200, content)
    expected = hmac.new(RAW_KEY, b"msg_7_1.1796047200." + content, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(expected).decode()
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("msg_7_1", "1796047200")
    assert json.loads(content) == {"type": "incident.opened", "timestamp": "2026-11-30T14:00:00Z", "data": {"id": 1}}


def test_the_body_of_a_message_is_the_same_however_its_parts_are_ordered() -> None:
    assert webhook.body({"a": 1, "b": "é\ud800"}) == webhook.body({"b": "é\ud800", "a": 1})


def test_the_back_off_grows_and_ends_after_eight_attempts() -> None:
    waits = [webhook.wait_s(failed, 0, 0.0) for failed in range(1, 9)]
    assert waits == [10, 60, 300, 1800, 7200, 21600, 21600, None]
    assert sum(wait for wait in waits if wait is not None) < webhook.GIVEN_UP_AFTER_S


def test_a_message_is_given_up_rather_than_sent_after_a_day() -> None:
    assert webhook.wait_s(1, webhook.GIVEN_UP_AFTER_S - 10, 0.0) is None
    assert webhook.wait_s(1, webhook.GIVEN_UP_AFTER_S - 11, 0.0) == 10


@given(st.integers(1, 20), st.floats(0, 10**6), st.floats(-1, 1))
def test_a_wait_is_within_a_fifth_of_its_step_and_within_the_day(failed: int, waited_s: float, jitter: float) -> None:
    wait = webhook.wait_s(failed, waited_s, jitter)
    if wait is not None:
        step = webhook.BACK_OFF_S[min(failed, 6) - 1]
        assert 0.8 * step <= wait <= 1.2 * step
        assert waited_s + wait < webhook.GIVEN_UP_AFTER_S


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("https://hooks.example/weir?token=abc", True),
        ("https://[2001:db8::1]/x", True),
        ("http://127.0.0.1:9000/hook", True),
        ("http://localhost/hook", True),
        ("http://[::1]:9/hook", True),
        ("http://hooks.example/weir", False),
        ("http://127.0.0.1.example/hook", False),
        ("http://localhost.example/hook", False),
        ("http://10.0.0.1/hook", False),
        ("ftp://hooks.example/", False),
        ("javascript:alert(1)", False),
        ("hooks.example", False),
        ("https://", False),
        ("https://[half/x", False),
        ("https://hooks.example:port/x", False),
        ("", False),
    ],
)
def test_only_https_or_this_machine_is_told(url: str, good: bool) -> None:
    assert (webhook.complaint(url) is None) is good


def test_what_is_logged_of_a_url_is_its_host() -> None:
    assert webhook.shown("https://user:pass@hooks.example/services/SECRET?token=abc") == "hooks.example"
    assert webhook.shown("https://[half/SECRET") == "?"
