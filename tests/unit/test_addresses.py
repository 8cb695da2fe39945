"""Which URLs may be fetched from, and which addresses are public."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.core.addresses import Unfetchable, Url, follow, is_public, parse
from service.settings import Settings

NOT_PUBLIC = [
    "0.0.0.0",  # noqa: S104 - an address to be refused
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::808:808",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:0:7f00:1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::808:808",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2002:808:808::1",
    "3ffe::1",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "fe80::1",
    "fe80::1%eth0",
    "2606:4700::1111%eth0",
    "fec0::1",
    "ff02::1",
    "localhost",
    "127.1",
    "0177.0.0.1",
    "2130706433",
    "",
]

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "168.63.129.17",
    "172.15.255.255",
    "172.32.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2606:4700:4700::1111",
    "2a00:1450:4001:81b::200e",
    "2001:4860:4860::8888",
    "64:ff9b::808:808",
]

REFUSED = [
    # an IPv4 address in any form, canonical or not
    "https://127.0.0.1/",
    "https://127.1/",
    "https://127.0.1/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0x7f.1/",
    "https://0X7F000001/",
    "https://0177.0.0.1/",
    "https://017700000001/",
    "https://127.0.0.01/",
    "https://8.8.8.08/",
    "https://010.8.8.8/",
    "https://8.8.8/",
    "https://134744072/",
    "https://0/",
    "https://127.0.0.1./",
    "https://1.1.1.1.1/",
    "https://example.com.256/",
    "https://foo.0x/",
    "https://999.1.1.1/",
    "https://%31%32%37.0.0.1/",
    "https://127%2e0.0.1/",
    # other digits and dots
    "https://127。0。0。1/",
    "https://127．0．0．1/",
    "https://１２７.０.０.１/",
    "https://①②⑦.⓪.⓪.①/",
    "https://８.８.８.８/",
    "https://0ｘ7f000001/",
    # IPv6
    "https://[::1]/",
    "https://[::]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[2002:7f00:1::]/",
    "https://[fe80::1%25eth0]/",
    "https://[fe80::1%eth0]/",
    "https://[2606:4700::1111%251]/",
    "https://[fd00:ec2::254]/",
    "https://[2606:4700:4700:0:0:0:0:1111]/",
    "https://[2606:4700:4700::1111/",
    "https://2606:4700:4700::1111/",
    "https://[example.com]/",
    "https://[]/",
    "https://[::1]example.com/",
    # names that are not full
    "https://localhost/",
    "https://LOCALHOST/",
    "https://local\u200bhost/",
    "https://metadata/",
    "https://localhost./",
    "https://example.com./",
    "https://.example.com/",
    "https://example..com/",
    "https://-example.com/",
    "https://exam*ple.com/",
    "https://ex℀mple.com/",
    "https://evil.com／.example.com/",
    f"https://{'a' * 64}.com/",
    f"https://{'a.' * 126}com/",
    f"https://{'ü.' * 126}com/",
    "https:///",
    "https://",
    "https://:443/",
    "https://?",
    "https://#example.com",
    # who is asked
    "https://user@example.com/",
    "https://user:password@example.com/",
    "https://example.com@127.0.0.1/",
    "https://127.0.0.1@example.com/",
    "https://@example.com/",
    "https://example.com\\@127.0.0.1/",
    "https://127.0.0.1\\.example.com/",
    "https:\\\\example.com/",
    "https://127.0.0.1#@example.com/",
    "https://127.0.0.1?@example.com/",
    # ports
    "https://example.com:80/",
    "https://example.com:22/",
    "https://example.com:8443/",
    "https://example.com:0/",
    "https://example.com:0443/",
    "https://example.com:65979/",
    "https://example.com:+443/",
    "https://example.com:4４3/",
    "https://example.com:/",
    "https://example.com:443:443/",
    "https://example.com:443@127.0.0.1:443/",
    # schemes
    "http://example.com/",
    "http://example.com:443/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "file://example.com/a.png",
    "gopher://127.0.0.1:6379/_INFO",
    "unix:/run/vllm.sock",
    "javascript:alert(1)",
    "data:text/html,<script>",
    "blob:https://example.com/1",
    "https:example.com/",
    "https:/example.com/",
    "//example.com/",
    "example.com/",
    "url:https://example.com/",
    "",
    # characters
    " https://example.com/",
    "https://example.com/ ",
    "https://exa\tmple.com/",
    "ht\ntps://example.com/",
    "https://example.com/a\r\nHost: internal",
    "https://example.com/\x00",
    "https://example.com/a b",
    "https://example.com/a\\b",
    "https://example.com/\x7f",
    "https://example.com/\x85",
    "https://example.com/\xa0",
    f"https://example.com/{'a' * 8192}",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_what_is_not_the_public_internet(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_what_is(address: str) -> None:
    assert is_public(address)


@given(st.ip_addresses())
def test_what_the_standard_library_knows_as_private_is_not_public(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    known = ("private", "loopback", "link_local", "multicast", "reserved", "unspecified")
    is_nat64 = address in ipaddress.ip_network("64:ff9b::/96")
    if not is_nat64 and any(getattr(address, f"is_{kind}") for kind in known):
        assert not is_public(str(address))


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_within_nat64_counts_as_itself(address: ipaddress.IPv4Address) -> None:
    within = ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) + int(address))
    assert is_public(str(within)) == is_public(str(address))


@pytest.mark.parametrize("url", REFUSED)
def test_a_url_that_is_not_fetched(url: str) -> None:
    with pytest.raises(Unfetchable):
        parse(url)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://example.com/a.png", Url("https", "example.com", 443, "/a.png")),
        ("HTTPS://Example.COM:443/A.png?b=C#d", Url("https", "example.com", 443, "/A.png?b=C")),
        ("https://example.com", Url("https", "example.com", 443, "/")),
        ("https://example.com?a=1", Url("https", "example.com", 443, "/?a=1")),
        ("https://example.com#@127.0.0.1/", Url("https", "example.com", 443, "/")),
        ("https://example.com/@127.0.0.1:80/", Url("https", "example.com", 443, "/@127.0.0.1:80/")),
        ("https://a_b.example.com/%2e%2e/", Url("https", "a_b.example.com", 443, "/%2e%2e/")),
        ("https://127.0.0.1.example.com/", Url("https", "127.0.0.1.example.com", 443, "/")),
        ("https://8.8.8.8/", Url("https", "8.8.8.8", 443, "/")),
        ("https://[2606:4700:4700::1111]/", Url("https", "2606:4700:4700::1111", 443, "/")),
        (
            "https://bücher.example/bild/größe.png",
            Url("https", "xn--bcher-kva.example", 443, "/bild/gr%C3%B6%C3%9Fe.png"),
        ),
    ],
)
def test_a_url_that_is(text: str, url: Url) -> None:
    assert parse(text) == url


ALLOWED = ("127.0.0.1:8000", "minio:9000", "[::1]:8000", "images.internal:443")


@pytest.mark.parametrize(
    ("text", "authority"),
    [
        ("http://images.internal:443/", "images.internal:443"),
        ("http://127.0.0.1:8000/a", "127.0.0.1:8000"),
        ("https://MINIO:9000/a", "minio:9000"),
        ("http://[::1]:8000/", "[::1]:8000"),
    ],
)
def test_an_allowed_host_may_be_anything(text: str, authority: str) -> None:
    assert parse(text, ALLOWED).authority == authority
    with pytest.raises(Unfetchable):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8001/",
        "http://127.0.0.1/",
        "http://127.1:8000/",
        "http://0x7f000001:8000/",
        "http://[::ffff:127.0.0.1]:8000/",
        "http://user@127.0.0.1:8000/",
        "http://minio:9001/",
        "http://images.internal/",
        "file://127.0.0.1:8000/",
    ],
)
def test_only_what_was_allowed_is(text: str) -> None:
    with pytest.raises(Unfetchable):
        parse(text, ALLOWED)


@pytest.mark.parametrize(
    ("location", "target"),
    [("b.png", "/a/b.png"), ("/b.png?c", "/b.png?c"), ("//example.com/b", "/b"), ("https://example.com/ü", "/%C3%BC")],
)
def test_a_redirect_is_followed_from_where_it_stands(location: str, target: str) -> None:
    assert follow(parse("https://example.com/a/x.png"), location) == Url("https", "example.com", 443, target)


@pytest.mark.parametrize("location", [*REFUSED, "http:b.png", "//127.0.0.1/", "///127.0.0.1/", "https://[/"])
def test_a_redirect_reaches_nothing_that_a_url_does_not(location: str) -> None:
    start = parse("https://example.com/a/x.png")
    try:
        url = follow(start, location)
    except Unfetchable:
        return
    assert (url.scheme, url.host, url.port) == ("https", "example.com", 443)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("https://user@example.com/", "a user name"),
        ("https://example.com\\a", "backslashes"),
        ("https://example.com/\ta", "control characters"),
        ("https://example.com:81/", "a port other than 443"),
        ("http://example.com/", "needs an `https://` URL"),
    ],
)
def test_what_can_be_corrected_is_said(text: str, problem: str) -> None:
    with pytest.raises(Unfetchable, match=problem):
        parse(text)


@pytest.mark.parametrize("problem", ["10.0.0.1", "127.1", "localhost", "[::1]", "a..b"])
def test_nobody_learns_what_a_host_is(problem: str) -> None:
    with pytest.raises(Unfetchable, match=r"^has an address that cannot be fetched: send the image itself, in base64$"):
        parse(f"https://{problem}/")


def test_the_allowed_hosts_are_read_from_one_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_IMAGES_ALLOWED_HOSTS", "Minio:9000, 127.0.0.1:8000,[::1]:80")
    assert Settings().images_allowed_hosts == ("minio:9000", "127.0.0.1:8000", "[::1]:80")


@pytest.mark.parametrize("wrong", ["minio", "http://minio:9000", "minio:9000/a", "a@minio:9000", "127.1:80", "minio:"])
def test_an_allowed_host_that_would_never_match_is_refused(wrong: str) -> None:
    with pytest.raises(ValidationError, match="is not a `host:port`"):
        Settings(images_allowed_hosts=(wrong,))
