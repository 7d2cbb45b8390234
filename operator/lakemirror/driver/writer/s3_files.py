"""The files of tables in a bucket of S3, by a client that needs no JVM: for tasks, and for the driver.

Files are put with one request each, which has all of the content or nothing: nothing is left of a task that
ends meanwhile, and a request that is sent again puts the same content. They are read in parts. Since a path
has the same content for ever, a process keeps footers, and small files as a whole.
"""

from __future__ import annotations

import io
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from lakemirror.driver.writer.data_files import File
from lakemirror.driver.writer.entry import Stamp, bare
from lakemirror.driver.writer.s3_access import Access, Keys
from lakemirror.driver.writer.stores import Opened, Recent, recent_footers

_WHOLE: Final = 1024 * 1024
"""Maximum size, in bytes, of files that are read as a whole, and kept: the request takes about as long."""
_MOST_KEPT: Final = 32 * 1024 * 1024
"""Maximum size, in bytes, of all files that a process keeps."""
_GAP: Final = 256 * 1024
"""Parts of a file with at most so many bytes between them are got by one request."""
_CLIENTS: Final = 8
"""How many clients a process keeps: one for each bucket and set of keys, which change now and then."""
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_TIMEOUT: Final = timedelta(minutes=5)
_CONNECTING: Final = timedelta(seconds=10)
_GIVING_UP: Final = timedelta(minutes=3)


_CONTENTS: Final[Recent[pa.Buffer]] = Recent(_MOST_KEPT)
_FOOTERS: Final = recent_footers()
"""What this process has read, of all buckets."""


class S3Files:
    """The files of a table below a key of a bucket."""

    threads = 8

    def __init__(self, access: Access, key: str) -> None:
        self._store, self._key = _client(access), key.strip("/")
        self._place = f"{access.endpoint}/{access.bucket}/{self._key}"

    def footer(self, path: str) -> pq.FileMetaData | None:
        return _FOOTERS.get(self._known_as(path))

    def keep_footer(self, path: str, footer: pq.FileMetaData) -> None:
        _FOOTERS.keep(self._known_as(path), footer, footer.serialized_size)

    def write(self, file: File) -> None:
        content = _buffer(file.content)
        octets = obstore.Bytes(memoryview(content).cast("B"))  # without a copy
        with _errors_of_files():
            obstore.put(self._store, self._at(file.path), octets, use_multipart=False)
        _keep(self._known_as(file.path), content)

    def read(self, path: str) -> bytes:
        found = _CONTENTS.get(self._known_as(path))
        if found is None:
            found = pa.py_buffer(self.read_now(path))
            _keep(self._known_as(path), found)
        return bytes(found)

    def read_now(self, path: str) -> bytes:
        """Return the content of a file as it is by now. Raises FileNotFoundError."""
        with _errors_of_files():
            return bytes(obstore.get(self._store, self._at(path)).bytes())

    @contextmanager
    def open(self, path: str, size: int) -> Iterator[Opened]:
        opened = _OpenedRemotely(self._store, self._at(path), self._known_as(path), size)
        try:
            yield opened
        finally:
            opened.source.close()

    def stamp(self, path: str) -> Stamp | None:
        try:
            with _errors_of_files():
                found = obstore.head(self._store, self._at(path))
        except FileNotFoundError:
            return None
        return Stamp(int(found["size"]), bare(found["e_tag"]))

    def exists(self, path: str) -> bool:
        return self.stamp(path) is not None

    def delete(self, path: str) -> None:
        _CONTENTS.forget(self._known_as(path))
        with _errors_of_files():
            obstore.delete(self._store, self._at(path))

    def _at(self, path: str) -> str:
        return f"{self._key}/{path}" if self._key else path

    def _known_as(self, path: str) -> str:
        return f"{self._place}/{path}"


@lru_cache(_CLIENTS)
def _client(access: Access) -> Any:
    """Return a client, which has its connections. Nothing in the environment counts."""
    return S3Store(
        access.bucket,
        config={
            "endpoint": access.endpoint,
            "region": access.region,
            "virtual_hosted_style_request": access.in_host,
            "skip_signature": access.keys is None,
            "request_payer": False,
            "unsigned_payload": False,
            "s3_express": False,
            "disable_bulk_delete": True,
        },
        client_options={
            "allow_http": access.endpoint.startswith("http://"),
            "timeout": _TIMEOUT,
            "connect_timeout": _CONNECTING,
            **({} if access.proxy is None else {"proxy_url": access.proxy.text}),
        },
        retry_config={"max_retries": access.attempts, "retry_timeout": _GIVING_UP},
        credential_provider=None if access.keys is None else _Provider(access.keys),
    )


@contextmanager
def _errors_of_files() -> Iterator[None]:
    """Raise errors of the client as those of files, in one line."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(_first_line(error)) from None
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise PermissionError(_first_line(error)) from None
    except BaseError as error:
        raise OSError(_first_line(error)) from None


def _first_line(error: BaseException) -> str:
    """Return what a client says, with the code of the store's answer in the place of its whole body."""
    text = str(error)
    said, code = text.partition("\n")[0].partition("<")[0], _CODE.search(text)
    return said if code is None else f"{said}{code[1]}"


@dataclass(frozen=True)
class _Provider:
    """Gives a client its keys."""

    keys: Keys

    def __call__(self) -> Any:
        keys = self.keys
        return {
            "access_key_id": keys.access_key.text,
            "secret_access_key": keys.secret_key.text,
            "token": None if keys.token is None else keys.token.text,
            "expires_at": None,
        }


class _OpenedRemotely:
    """A file of which parts are got when they are asked for, unless they were fetched before."""

    def __init__(self, store: Any, key: str, known_as: str, size: int) -> None:
        self._store, self._key, self._known_as, self._size = store, key, known_as, size
        content = _CONTENTS.get(known_as)
        self._parts: list[tuple[int, pa.Buffer]] = [] if content is None else [(0, content)]
        """The parts that are there, in their order, each with its start."""
        self.source = pa.PythonFile(_Reader(self, size), mode="r")

    def fetch(self, parts: Sequence[tuple[int, int]]) -> None:
        if self._size <= _WHOLE or not parts:
            return  # it is read as a whole
        starts, ends = zip(*_together(parts), strict=True)
        with _errors_of_files():
            found = obstore.get_ranges(self._store, self._key, starts=starts, ends=ends, coalesce=0)
        self._parts = [(start, _buffer(each)) for start, each in zip(starts, found, strict=True)]

    def part(self, start: int, end: int) -> pa.Buffer:
        """Return a part of the file."""
        found = self._found(start, end)
        if found is not None:
            return found
        if self._size <= _WHOLE:
            content = self._got(0, self._size)
            _keep(self._known_as, content)
            self._parts = [(0, content)]
            return content.slice(start, end - start)
        return self._got(start, end)

    def _found(self, start: int, end: int) -> pa.Buffer | None:
        at = bisect_right(self._parts, start, key=lambda each: each[0]) - 1
        if at < 0:
            return None
        begins, content = self._parts[at]
        return content.slice(start - begins, end - start) if end <= begins + content.size else None

    def _got(self, start: int, end: int) -> pa.Buffer:
        with _errors_of_files():
            found = _buffer(obstore.get_range(self._store, self._key, start=start, end=end))
        if found.size != end - start:
            raise OSError(f"{self._key} has not the {self._size} bytes that it should have")
        return found


def _together(parts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return parts of which those that are near each other have become one. Arrow reads some like that."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(parts):
        if found and start <= found[-1][1] + _GAP:
            start, end = found[-1][0], max(end, found.pop()[1])
        found.append((start, end))
    return found


class _Reader(io.RawIOBase):
    """A file as Arrow reads one of Python's."""

    def __init__(self, opened: _OpenedRemotely, size: int) -> None:
        super().__init__()
        self._opened, self._size, self._at = opened, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> Any:
        end = self._size if size < 0 else min(self._at + size, self._size)
        if end <= self._at:
            return b""
        found = self._opened.part(self._at, end)
        self._at = end
        return found


def _buffer(content: Any) -> pa.Buffer:
    return content if isinstance(content, pa.Buffer) else pa.py_buffer(content)


def _keep(place: str, content: pa.Buffer) -> None:
    if content.size <= _WHOLE:
        _CONTENTS.keep(place, content, content.size)
