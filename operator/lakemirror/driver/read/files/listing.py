"""The files that ``source.files.path`` names: a folder, a pattern, or one file."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import Final

from pyspark.sql import SparkSession

from lakemirror.driver.checkpoint.storage import Entry, Storage, file_system, open_storage
from lakemirror.driver.errors import LakemirrorError

_PATTERN: Final = re.compile(r"[*?\[]")


class InputMissing(LakemirrorError):
    """The files to read do not exist."""


class Inputs:
    """Files by name, relative to the last folder of the path that is not a pattern.

    ``suffixes`` select files in a folder. A pattern makes its own selection.
    """

    def __init__(self, path: str, spark: SparkSession, suffixes: tuple[str, ...]) -> None:
        self._path, self._spark, self._suffixes = path.rstrip("/") or "/", spark, suffixes
        parent, _, self._last = self._path.rpartition("/")
        self._parent_path = parent or ("/" if path.startswith("/") else ".")
        self._many = _is_pattern(parent)
        root = _without_patterns(parent) if self._many else self._parent_path
        self._parent = open_storage(root, spark)
        self._folder = open_storage(self._path, spark) if not _is_pattern(self._path) else None

    def files(self) -> list[Entry]:
        """Return the files, sorted by name.

        Raises InputMissing if the place does not exist. A pattern may match nothing.
        """
        folder = self._as_folder()
        if folder is not None:
            return [e for e in folder.list() if e.name.endswith(self._suffixes) and not _is_hidden(e.name)]
        if self._many:
            return self._in_folders()
        if _is_hidden(self._last) and not _is_pattern(self._last):
            raise InputMissing(
                f"spec.source.files.path: {self._path} is a hidden file, which Spark does not read: give it "
                "a name that does not begin with _ or . nor end with ._COPYING_"
            )
        found = [entry for entry in self._parent.list() if self._matches(entry)]
        if not found and not (_is_pattern(self._last) and self._parent.is_folder("")):
            raise InputMissing(f"spec.source.files.path: there is no file or directory {self._path}")
        return found

    def _matches(self, entry: Entry) -> bool:
        return fnmatch.fnmatchcase(entry.name, self._last) and not _is_hidden(entry.name)

    def _in_folders(self) -> list[Entry]:
        if not self._parent.is_folder(""):
            raise InputMissing(f"spec.source.files.path: there is no directory {self._parent.uri}")
        found = [
            Entry(f"{folder}/{entry.name}", entry.size, entry.mtime)
            for folder in self._folders()
            for entry in self._parent.list(folder)
            if self._matches(entry)
        ]
        return sorted(found, key=lambda entry: entry.name)

    def _folders(self) -> Sequence[str]:
        """Return the matching folders, relative to the root of the file names."""
        files, pattern = file_system(self._spark, self._parent_path)
        _, root = file_system(self._spark, self._parent.uri)
        base = f"{files.makeQualified(root).toUri().getPath().rstrip('/')}/"
        found = files.globStatus(pattern) or ()
        folders = [each.getPath().toUri().getPath() for each in found if each.isDirectory()]
        names = [folder.removeprefix(base) for folder in folders]
        return [name for name in names if not any(part[0] in "_." for part in name.split("/"))]

    def sha256(self, name: str, first: int) -> str:
        """Return the SHA-256 of a file's ``first`` bytes."""
        return self.storage().sha256(name, first)

    def uri(self, name: str) -> str:
        """Return the URI of a file."""
        return f"{self.storage().uri}/{name}"

    def storage(self) -> Storage:
        """Return the storage of the files."""
        return self._as_folder() or self._parent

    def table_of(self, name: str) -> str:
        """Return the name of the table that a file's place implies.

        This is the folders that match patterns of the path, joined by dots, or without patterns, the file's
        folder.
        """
        if self._many:
            return name.rpartition("/")[0].replace("/", ".")
        return self.storage().uri.rstrip("/").rpartition("/")[2]

    def _as_folder(self) -> Storage | None:
        # Checked each time: a folder may appear while the pipeline waits for it.
        return self._folder if self._folder is not None and self._folder.is_folder("") else None


def literal(uri: str) -> str:
    """Return ``uri`` with the characters escaped that Hadoop would interpret as a pattern."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", uri)


def _is_hidden(name: str) -> bool:
    """Return whether Spark skips files of this name (HadoopFSUtils.shouldFilterOutPathName).

    It would read nothing, and the file would count as applied.
    """
    return name[:1] in ("_", ".") or name.endswith("._COPYING_")


def _is_pattern(text: str) -> bool:
    return _PATTERN.search(text) is not None


def _without_patterns(folder: str) -> str:
    """Return the part of the path before the first folder that is a pattern."""
    parts = folder.split("/")
    first = next(number for number, part in enumerate(parts) if _is_pattern(part))
    return "/".join(parts[:first]) or ("/" if folder.startswith("/") else ".")
