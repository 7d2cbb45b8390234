"""Text files as they are stored, compressed or not: how much text they hold, and their first line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakemirror.driver.checkpoint.storage import file_system
from lakemirror.driver.java import java_class
from lakemirror.driver.read.files.limits import LONGEST_HEADER, LONGEST_LINE, Text, most_text

_MEASURE: Final = "io.lakemirror.delta.TextMeasure"
_DENIED: Final = ("(Permission denied)", "AccessControlException", "AccessDeniedException")
_PIECES: Final = (2**14, LONGEST_HEADER + 1)
"""How many bytes are read until the first line is among them."""


class TextFiles:
    """Text files by URI. All methods raise FileNotFoundError and PermissionError."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._codecs: dict[str, Any] = {}
        """Hadoop's codec for each suffix of a file, or None if there is none."""

    def is_compressed(self, uri: str) -> bool:
        """Return whether Spark decompresses the file, which its name decides."""
        return self._codec(uri) is not None

    def measure(self, uri: str, size: int) -> Text:
        """Return what a file of ``size`` bytes holds, or as much as shows that it is beyond a limit."""
        codec = self._codec(uri)
        most = most_text(size) if codec is not None else 2**62
        with self._opened(uri) as stream:
            found = java_class(self._spark, _MEASURE).of(stream, codec, most, LONGEST_LINE)
        damage = found.damage()
        return Text(int(found.size()), int(found.longest()), None if damage is None else str(damage))

    def first_line(self, uri: str) -> bytes:
        """Return the first line of a file, or as many of its bytes as show that it is no header."""
        codec, utils = self._codec(uri), java_class(self._spark, "org.apache.commons.io.IOUtils")
        bounded = java_class(self._spark, "org.apache.commons.io.input.BoundedInputStream")
        found = b""
        with self._opened(uri) as stream:
            text = stream if codec is None else codec.createInputStream(stream)
            for most in _PIECES:
                piece = bytes(utils.toByteArray(bounded(text, most - len(found))))
                found += piece
                if b"\n" in piece or len(found) < most:
                    break
        return found.partition(b"\n")[0]

    def _codec(self, uri: str) -> Any:
        suffix = suffix_of(uri)
        if suffix not in self._codecs:
            files, path = file_system(self._spark, uri)
            factory = java_class(self._spark, "org.apache.hadoop.io.compress.CompressionCodecFactory")
            self._codecs[suffix] = factory(files.getConf()).getCodec(path)
        return self._codecs[suffix]

    @contextmanager
    def _opened(self, uri: str) -> Iterator[Any]:
        files, path = file_system(self._spark, uri)
        try:
            stream = files.open(path)
            try:
                yield stream
            finally:
                stream.close()
        except Py4JJavaError as error:
            text = str(error.java_exception)
            if any(each in text for each in _DENIED):
                raise PermissionError(uri) from None
            if "FileNotFoundException" in text:
                raise FileNotFoundError(uri) from None
            raise


def suffix_of(uri: str) -> str:
    """Return what says how a file is compressed: its name from the last dot on, or "" if it has none."""
    _, dot, suffix = uri.rpartition("/")[2].rpartition(".")
    return dot + suffix if dot else ""
