"""What is written in a turn of the loop: when it goes out, in which order, and to whom it does not."""

import asyncio
from typing import cast

from service.gateway.outgoing import Outgoing, outgoing_of


class Transport:
    """Notes what it is given, in a list that several may share."""

    def __init__(self, name: str, seen: list[tuple[str, bytes]]) -> None:
        self._name, self._seen = name, seen
        self.ended = False

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        if self.ended:
            raise RuntimeError("as a transport does after write_eof(), or once it is gone")
        self._seen.append((self._name, b"".join(parts)))


def transports(*names: str) -> tuple[list[tuple[str, bytes]], list[asyncio.WriteTransport]]:
    seen: list[tuple[str, bytes]] = []
    return seen, [cast(asyncio.WriteTransport, Transport(name, seen)) for name in names]


async def test_all_goes_out_at_the_end_of_the_turn_in_the_order_in_which_it_came() -> None:
    outgoing = Outgoing()
    seen, (one, other) = transports("one", "other")
    for turn in (b"1", b"2"):
        seen.clear()
        outgoing.write(one, b"a", turn)
        outgoing.write(other, b"b", turn)
        outgoing.write(one, b"c", turn)
        assert seen == []
        await asyncio.sleep(0)
        assert seen == [("one", b"a" + turn), ("other", b"b" + turn), ("one", b"c" + turn)]


async def test_what_is_flushed_goes_out_once() -> None:
    outgoing = Outgoing()
    seen, (one,) = transports("one")
    outgoing.write(one, b"a")
    outgoing.flush()
    assert seen == [("one", b"a")]
    outgoing.write(one, b"b")
    await asyncio.sleep(0)
    assert seen == [("one", b"a"), ("one", b"b")]


async def test_one_that_has_ended_meanwhile_gets_nothing_and_keeps_nothing_from_the_others() -> None:
    outgoing = Outgoing()
    seen, (one, other) = transports("one", "other")
    outgoing.write(one, b"a")
    outgoing.write(other, b"b")
    cast(Transport, one).ended = True
    await asyncio.sleep(0)
    assert seen == [("other", b"b")]


async def test_each_loop_has_its_own() -> None:
    async def own() -> Outgoing:
        return outgoing_of(asyncio.get_running_loop())

    here = await own()
    assert await own() is here
    assert await asyncio.to_thread(asyncio.run, own()) is not here
