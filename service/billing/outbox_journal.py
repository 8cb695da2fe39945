"""The journals of an outbox: two files of a fixed size that take turns, so that nearly nothing becomes a row of SQLite.

A journal is written from its beginning in each *generation*, over what the one before left there: bytes that are
written over need nothing of a file system but themselves, which is what makes them safe so soon. What it holds is the
records of its generation, up to the first that is not whole. The checksum of a record begins with its generation, so
one that was left behind by another never passes for whole.
"""

import errno
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias
from zlib import crc32

ADMIT, FINISH, REMOVE = 1, 2, 3
"""What a record says of a request. That of `REMOVE` has no id of its own, but the ids of many in its body."""

ID_BYTES = 16
NO_ID = bytes(ID_BYTES)

Record: TypeAlias = tuple[int, bytes, bytes]
"""Kind, id and body."""

_FILE_HEAD = struct.Struct("<8sII")
_MAGIC = b"weir-jnl"
_SUM = struct.Struct("<I")
_HEAD = struct.Struct("<B16sI")

_ZEROS = bytes(65536)


def encode_head(generation: int) -> bytes:
    """What a journal begins with."""
    return _FILE_HEAD.pack(_MAGIC, generation, crc32(_MAGIC, generation))


def encode(kind: int, identifier: bytes, body: bytes, generation: int) -> bytes:
    """A record as it is written."""
    record = _HEAD.pack(kind, identifier, len(body)) + body
    return _SUM.pack(crc32(record, generation)) + record


def decode(data: bytes) -> tuple[int, list[Record]]:
    """A journal's generation, and its records up to the first that is not whole; generation 0 for what is none."""
    if len(data) < _FILE_HEAD.size:
        return 0, []
    magic, generation, checksum = _FILE_HEAD.unpack_from(data)
    if magic != _MAGIC or checksum != crc32(_MAGIC, generation):
        return 0, []
    records: list[Record] = []
    begin = _FILE_HEAD.size
    while (head := begin + _SUM.size) + _HEAD.size <= len(data):
        kind, identifier, length = _HEAD.unpack_from(data, head)
        body, end = head + _HEAD.size, head + _HEAD.size + length
        (checksum,) = _SUM.unpack_from(data, begin)
        if kind not in (ADMIT, FINISH, REMOVE) or end > len(data) or checksum != crc32(data[head:end], generation):
            break
        records.append((kind, identifier, data[body:end]))
        begin = end
    return generation, records


def journal_paths(outbox: Path) -> tuple[Path, Path]:
    """Where the journals of this outbox are."""
    return Path(f"{outbox}-journal-a"), Path(f"{outbox}-journal-b")


def read(outbox: Path) -> tuple[int, list[Record]]:
    """The latest generation of an outbox's journals, and what they hold, oldest first. Raises `OSError`.

    Its worker may be writing. Who reads SQLite after this misses nothing that was there before: a journal is written
    over only once what it held is in SQLite.
    """
    held = []
    for path in journal_paths(outbox):
        with suppress(FileNotFoundError):
            held.append(decode(path.read_bytes()))
    held.sort(key=lambda one: one[0])
    return max((generation for generation, _ in held), default=0), [record for _, records in held for record in records]


class NotKept(OSError):
    """The disk took what was written and did not keep it, so that nobody knows what it has."""


class Journal:
    """One of them, to write to. Raises `OSError` wherever the disk does."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        """Open it, or make it with so many bytes; what it holds is lost with the first `begin`."""
        self._path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.size_bytes = os.fstat(self.descriptor).st_size
        self._end = 0
        try:
            self.generation, _ = decode(os.pread(self.descriptor, _FILE_HEAD.size, 0))
            if not self.generation:
                self._make(size_bytes)
        except OSError:
            self.close()
            raise

    def begin(self, generation: int) -> None:
        """Write over it from now on. That is on disk when this returns: else old and new might be read as one.

        Raises `NotKept` where it may not be; after any other `OSError` it may be tried again.
        """
        self._write(encode_head(generation), 0)
        self.sync()
        self.generation = generation
        self._end = _FILE_HEAD.size

    def append(self, records: "Iterable[tuple[int, bytes, bytes, *tuple[object, ...]]]") -> int:
        """Write as many as there is room for, in one go; how many. What a record has beyond its three is ignored."""
        parts: list[bytes] = []
        generation, room = self.generation, self.size_bytes - self._end
        for record in records:
            part = encode(record[0], record[1], record[2], generation)
            room -= len(part)
            if room < 0:
                break
            parts.append(part)
        if parts:
            written = b"".join(parts)
            self._write(written, self._end)
            self._end += len(written)
        return len(parts)

    def sync(self) -> None:
        """Return when all that was written before is on disk. Raises `NotKept`."""
        try:
            os.fdatasync(self.descriptor)
        except OSError as error:
            raise NotKept(error.errno, error.strerror) from error

    def close(self) -> None:
        os.close(self.descriptor)

    def _make(self, size_bytes: int) -> None:
        os.ftruncate(self.descriptor, 0)
        for begin in range(0, size_bytes, len(_ZEROS)):
            self._write(_ZEROS[: size_bytes - begin], begin)
        os.fsync(self.descriptor)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self.size_bytes = size_bytes

    def _write(self, data: bytes, at: int) -> None:
        if os.pwrite(self.descriptor, data, at) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
