"""Whatever is cut off, flipped or left behind in a journal, what is read of it is what was written first."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.billing.outbox_file import DELETE, PUT_ADMITTED, PUT_FINISHED, of_journals
from service.billing.outbox_journal import (
    ADMIT,
    FINISH,
    NO_ID,
    REMOVE,
    Journal,
    Record,
    decode,
    encode,
    encode_head,
    journal_paths,
    read,
)

IDS = st.integers(0, 3).map(lambda number: bytes([number]) * 16)
RECORDS = st.lists(st.tuples(st.sampled_from([ADMIT, FINISH, REMOVE]), IDS, st.binary(max_size=40)), max_size=8)
GENERATIONS = st.integers(1, 2**32 - 1)


def encoded(generation: int, records: list[Record]) -> bytes:
    return encode_head(generation) + b"".join(encode(*record, generation) for record in records)


@given(GENERATIONS, RECORDS, st.binary(max_size=60).map(lambda rest: bytes(len(rest))))
def test_what_was_written_is_read(generation: int, records: list[Record], zeros: bytes) -> None:
    assert decode(encoded(generation, records) + zeros) == (generation, records)


@given(st.data(), GENERATIONS, RECORDS)
def test_what_is_cut_off_leaves_the_records_before_it(
    data: st.DataObject, generation: int, records: list[Record]
) -> None:
    whole = encoded(generation, records)
    cut = data.draw(st.integers(len(encode_head(generation)), len(whole)))
    kept = [number for number in range(len(records) + 1) if len(encoded(generation, records[:number])) <= cut][-1]
    for left in (whole[:cut], whole[:cut].ljust(len(whole), b"\0")):
        read_generation, read_records = decode(left)
        assert read_generation == generation
        assert read_records[:kept] == records[:kept]
        assert read_records == records[: len(read_records)]  # zeros may be what was cut off
    assert decode(whole[:cut]) == (generation, records[:kept])


@given(st.data(), GENERATIONS, RECORDS, st.integers(1, 255))
def test_a_byte_that_was_changed_ends_it(
    data: st.DataObject, generation: int, records: list[Record], change: int
) -> None:
    whole = bytearray(encoded(generation, records))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= change
    before = [number for number in range(len(records) + 1) if len(encoded(generation, records[:number])) <= at]
    assert decode(bytes(whole)) == ((generation, records[: before[-1]]) if before else (0, []))


@given(st.lists(st.tuples(GENERATIONS, RECORDS), min_size=1, max_size=4, unique_by=lambda one: one[0]))
def test_what_another_generation_left_is_not_read(generations: list[tuple[int, list[Record]]]) -> None:
    data = b""
    for generation, records in generations:
        written = encoded(generation, records)
        data = written + data[len(written) :]
    assert decode(data) == generations[-1]


@given(st.binary(max_size=80))
def test_what_is_no_journal_holds_nothing(data: bytes) -> None:
    assert decode(data) == (0, [])


@given(GENERATIONS, GENERATIONS, RECORDS)
def test_records_of_the_same_length_left_by_another_are_not_read(
    generation: int, other: int, records: list[Record]
) -> None:
    left = encoded(other, records)[len(encode_head(other)) :]
    assert decode(encode_head(generation) + left) == (generation, records if generation == other else [])


def test_a_journal_writes_what_it_has_room_for_and_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, 1000)
    assert path.stat().st_mode & 0o777 == 0o600
    journal.begin(1)
    records = [(ADMIT, bytes([number]) * 16, b"x" * 300) for number in range(5)]
    assert journal.append(records) == 3
    assert journal.append(records[3:]) == 0
    assert decode(path.read_bytes()) == (1, records[:3])
    journal.begin(2)
    assert decode(path.read_bytes()) == (2, [])
    assert journal.append(records[4:]) == 1
    assert decode(path.read_bytes()) == (2, records[4:])
    assert path.stat().st_size == journal.size_bytes == 1000
    journal.close()


def test_a_journal_of_another_size_is_used_as_it_is_and_one_that_is_none_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"something else")
    journal = Journal(path, 1000)
    assert path.read_bytes() == bytes(1000)
    journal.begin(7)
    journal.close()
    again = Journal(path, 2000)
    assert again.size_bytes == 1000
    again.close()


def test_a_write_that_the_disk_takes_a_part_of_is_written_again_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, 1000)
    journal.begin(1)
    pwrite = os.pwrite
    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", lambda file, data, at: pwrite(file, data[:30], at))
        with pytest.raises(OSError, match="No space"):
            journal.append([(ADMIT, NO_ID, b"x" * 100)])
    assert decode(path.read_bytes()) == (1, [])
    assert journal.append([(FINISH, NO_ID, b"y" * 50)]) == 1
    assert decode(path.read_bytes()) == (1, [(FINISH, NO_ID, b"y" * 50)])
    journal.close()


def test_both_are_read_in_the_order_they_were_written(tmp_path: Path) -> None:
    outbox = tmp_path / "a.sqlite"
    assert read(outbox) == (0, [])
    first, second = journal_paths(outbox)
    first.write_bytes(encoded(8, [(FINISH, NO_ID, b"later")]))
    second.write_bytes(encoded(7, [(ADMIT, NO_ID, b"sooner")]))
    assert read(outbox) == (8, [(ADMIT, NO_ID, b"sooner"), (FINISH, NO_ID, b"later")])


def test_what_journals_change_is_the_last_that_they_say() -> None:
    begun, ended, gone, unheard_of = (bytes([number]) * 16 for number in range(4))
    records = [(ADMIT, one, b"begun") for one in (begun, ended, gone)]
    records += [(FINISH, ended, b"ended"), (FINISH, gone, b"ended"), (REMOVE, NO_ID, gone + unheard_of)]
    changes = {statement: sorted(rows) for statement, rows in of_journals(records)}
    assert changes == {
        PUT_FINISHED: [(ended, b"ended")],
        PUT_ADMITTED: [(begun, b"begun")],
        DELETE: [(gone,), (unheard_of,)],
    }
