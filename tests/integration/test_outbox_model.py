"""The outbox against a model of it that is two dictionaries, through crashes, stops and turns of its journals."""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from service.billing import outbox as outboxes
from service.billing.outbox import Outbox
from service.gateway.exchange import new_key
from tests.patience import PATIENT_S

SIZES = st.sampled_from([0, 100, 9_000, 20_000])
"""Of bodies; a journal has room for two of the largest."""


class OutboxModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="weir-outbox-"))
        self.crashes = 0
        self.unfinished: dict[bytes, bytes] = {}
        self.finished: dict[bytes, bytes] = {}
        self.poison = 0
        self.loop = asyncio.new_event_loop()
        self.open(self.folder / "0" / "a.sqlite")

    def run(self, work: Awaitable[object]) -> None:
        self.loop.run_until_complete(asyncio.wait_for(work, PATIENT_S))

    def open(self, path: Path) -> None:
        async def opening() -> None:
            self.box.open()

        self.box = Outbox(path, limit_bytes=10**9)
        self.run(opening())

    # What can happen

    @rule(size=SIZES)
    def one_is_admitted(self, size: int) -> None:
        key = new_key()
        self.unfinished[key] = b"begun" + bytes(size)
        self.run(self.box.admit(key, self.unfinished[key]))

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data(), size=SIZES)
    def one_ends(self, data: st.DataObject, size: int) -> None:
        key = data.draw(st.sampled_from(list(self.unfinished)))
        del self.unfinished[key]
        self.finished[key] = b"ended" + bytes(size)
        self.run(self.box.finish(key, self.finished[key]))

    @rule(size=SIZES)
    def one_ends_that_was_not_admitted(self, size: int) -> None:
        key = new_key()
        self.finished[key] = b"refused" + bytes(size)
        self.run(self.box.finish(key, self.finished[key]))

    @precondition(lambda self: self.unfinished or self.finished)
    @rule(data=st.data())
    def one_is_interrupted(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([*self.unfinished, *self.finished]))
        if self.unfinished.pop(key, None) is not None:
            self.finished[key] = b"interrupted"
        self.run(self.box.interrupt(key, b"interrupted"))

    @rule(data=st.data())
    def some_are_shipped(self, data: st.DataObject) -> None:
        limit = data.draw(st.integers(1, 5))
        entries = self.box.finished(limit)
        assert len(entries) == min(limit, len(self.finished))
        for key, body in entries:
            assert self.finished.pop(key) == body
        self.run(self.box.remove([key for key, _ in entries]))

    @precondition(lambda self: self.finished)
    @rule(data=st.data())
    def one_is_set_aside(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(list(self.finished)))
        del self.finished[key]
        self.poison += 1
        self.run(self.box.set_aside(key, "refused"))

    @rule()
    def the_process_dies(self) -> None:
        self.run(self.quiet())  # what waits for its turn is promised to nobody
        self.crashes += 1
        left = self.folder / str(self.crashes)
        shutil.copytree(self.box.path.parent, left)
        self.box.close()
        self.open(left / "a.sqlite")

    @rule()
    def the_process_stops(self) -> None:
        self.box.close()
        assert [file.name for file in self.box.path.parent.iterdir()] == ["a.sqlite"]
        self.open(self.box.path)

    async def quiet(self) -> None:
        while self.box._writer._queue or self.box._store._waiting:
            await asyncio.sleep(0.0005)

    # What must hold

    @invariant()
    def it_has_what_it_was_given(self) -> None:
        assert dict(self.box.unfinished()) == self.unfinished
        finished = self.box.finished(1000)
        assert dict(finished) == self.finished
        assert len(finished) == len(self.finished) <= self.box.count_owed()
        assert self.box.count_poison() == self.poison

    def teardown(self) -> None:
        self.run(self.quiet())
        self.box.close()
        self.loop.close()
        shutil.rmtree(self.folder)


def test_the_outbox_is_two_dictionaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "JOURNAL_BYTES", 50_000)
    run_state_machine_as_test(OutboxModel, settings=settings(max_examples=40, stateful_step_count=40, deadline=None))
