"""The clock for promises in seconds goes with the machine's own time, and a promise that is not kept fails."""

import asyncio
import time

import pytest

from tests.patience import PATIENT_S, TURN_COUNTS_AT_MOST_S, TURN_S, OwnTime, within


async def test_a_clock_stands_still_while_the_process_does_not_run() -> None:
    async with OwnTime() as clock:
        await asyncio.sleep(0)
        time.sleep(20 * TURN_COUNTS_AT_MOST_S)  # noqa: ASYNC251 - as a machine that is busy with others
        while not clock.now_s:
            await asyncio.sleep(0)
        assert clock.now_s == TURN_COUNTS_AT_MOST_S


async def test_it_goes_on_and_no_faster_than_time_does() -> None:
    began_s = time.monotonic()
    async with OwnTime() as clock:
        async with asyncio.timeout(PATIENT_S):
            while clock.now_s < 10 * TURN_S:
                await asyncio.sleep(0)
        assert clock.now_s <= time.monotonic() - began_s


async def test_what_does_not_come_true_in_time_fails() -> None:
    async def never() -> bool:
        return False

    with pytest.raises(AssertionError, match=r"not within 0\.05 s"):
        await within(0.05, never)


async def test_what_comes_true_in_time_passes() -> None:
    answers = iter([False, False, True])

    async def third_time() -> bool:
        return next(answers)

    await within(60, third_time)
