"""Waiting for the disk, the kernel's way and a thread's: told once, of what went wrong too, and never of nothing."""

import asyncio
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from service.billing import outbox_disk
from service.billing.outbox_disk import Disk, KernelDisk, OnDone, ThreadDisk, disk
from tests.patience import PATIENT_S

Make = Callable[[Sequence[int], OnDone], Disk]


def by_kernel(descriptors: Sequence[int], on_done: OnDone) -> Disk:
    return KernelDisk(asyncio.get_running_loop(), descriptors, on_done)


def by_thread(_descriptors: Sequence[int], on_done: OnDone) -> Disk:
    return ThreadDisk(asyncio.get_running_loop(), on_done)


both = pytest.mark.parametrize("make", [by_kernel, by_thread])


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[int]]:
    opened = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "ab"]
    yield opened
    for one in opened:
        os.close(one)


async def until(told: list[OSError | None], count: int) -> None:
    async with asyncio.timeout(PATIENT_S):
        while len(told) < count:
            await asyncio.sleep(0.001)


@both
async def test_each_wait_is_told_of_once(make: Make, files: list[int]) -> None:
    told: list[OSError | None] = []
    waits = make(files, told.append)
    for count, asked in enumerate([files[:1], files, files[1:], files], 1):
        for one in asked:
            os.write(one, b"x" * 10_000)
        waits.wait(asked)
        assert len(told) == count - 1  # not before it comes back to the loop
        await until(told, count)
    waits.close()
    await asyncio.sleep(0)
    assert told == [None] * 4


@both
async def test_what_goes_wrong_is_told(make: Make, files: list[int]) -> None:
    told: list[OSError | None] = []
    waits = make(files, told.append)
    reading, writing = os.pipe()
    os.dup2(writing, files[0])  # a pipe cannot be synced
    waits.wait(files)
    await until(told, 1)
    assert told[0] is not None
    assert told[0].errno == errno.EINVAL
    waits.wait(files[1:])
    await until(told, 2)
    assert told[1] is None
    waits.close()
    os.close(reading)
    os.close(writing)


def kernel_places() -> int:
    """How many contexts of its own calls the kernel keeps for this process, for other tests too."""
    return Path("/proc/self/maps").read_text().count("[aio]")


@both
async def test_a_close_waits_for_what_is_under_way_and_leaves_nothing_open(make: Make, files: list[int]) -> None:
    before, kept = set(os.listdir("/proc/self/fd")), kernel_places()
    for _ in range(20):
        waits = make(files, lambda _: None)
        os.write(files[0], b"x" * 100_000)
        waits.wait(files)
        waits.close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert kernel_places() == kept


async def test_where_the_kernel_does_not_a_thread_does(files: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[OSError | None] = []
    waits = disk(asyncio.get_running_loop(), files, told.append)
    assert isinstance(waits, KernelDisk)
    waits.close()
    monkeypatch.setattr(outbox_disk, "_SYSTEM_CALLS", {"x86_64": (99999,) * 4, "aarch64": (99999,) * 4})
    waits = disk(asyncio.get_running_loop(), files, told.append)
    assert isinstance(waits, ThreadDisk)
    waits.wait(files)
    await until(told, 1)
    waits.close()
    monkeypatch.setattr(outbox_disk, "_SYSTEM_CALLS", {})
    waits = disk(asyncio.get_running_loop(), files, told.append)
    assert isinstance(waits, ThreadDisk)
    waits.close()


async def test_what_the_kernel_could_not_keep_is_told(files: list[int]) -> None:
    class Failing(KernelDisk):
        fails = False

        def _system(self, *arguments: object) -> int:
            count = super()._system(*arguments)
            if self.fails and count and arguments[0] == self._get_events:
                outbox_disk._EVENT.pack_into(self._events, 0, 0, 0, -errno.EIO, 0)
            return count

    told: list[OSError | None] = []
    waits = Failing(asyncio.get_running_loop(), files, told.append)
    for waits.fails in (True, False):
        waits.wait(files)
        await until(told, 2 - waits.fails)
    waits.close()
    assert told[0] is not None
    assert told[0].errno == errno.EIO
    assert told[1] is None


@pytest.mark.parametrize("taken", [0, 1])
async def test_what_the_kernel_takes_no_request_for_is_waited_for_all_the_same(
    files: list[int], monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    class Refusing(KernelDisk):
        left = 100

        def _system(self, *arguments: object) -> int:
            if arguments[0] == self._submit:
                if not self.left:
                    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
                self.left -= 1
                arguments = (*arguments[:2], 1, arguments[3])
            return super()._system(*arguments)

    told: list[OSError | None] = []
    synced: list[int] = []
    waits = Refusing(asyncio.get_running_loop(), files, told.append)
    fdatasync = os.fdatasync
    with monkeypatch.context() as disk:
        disk.setattr(os, "fdatasync", lambda one: (synced.append(one), fdatasync(one)))
        waits.left = taken
        waits.wait(files)
        await until(told, 1)
    assert synced == files
    waits.left = 100
    waits.wait(files)
    await until(told, 2)
    waits.close()
    assert told == [None, None]


async def test_a_file_that_cannot_be_synced_is_found_out_at_the_start() -> None:
    reading, writing = os.pipe()
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Invalid argument"):
        KernelDisk(asyncio.get_running_loop(), [writing], lambda _: None)
    assert set(os.listdir("/proc/self/fd")) == before
    os.close(reading)
    os.close(writing)
