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
    """The files to read are not there."""


class Inputs:
    """Files by name: relative to the last folder of the path that is no pattern.

    ``suffixes`` are those of the files that are meant in a folder; a pattern says itself what is meant.
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
        """The files by name. InputMissing where there is no such place; a pattern may match nothing."""
        folder = self._as_folder()
        if folder is not None:
            return [e for e in folder.list() if e.name.endswith(self._suffixes) and e.name[0] not in "_."]
        if self._many:
            return self._in_folders()
        found = [entry for entry in self._parent.list() if fnmatch.fnmatchcase(entry.name, self._last)]
        if not found and not (_is_pattern(self._last) and self._parent.is_folder("")):
            raise InputMissing(f"spec.source.files.path: there is no file or directory {self._path}")
        return found

    def _in_folders(self) -> list[Entry]:
        if not self._parent.is_folder(""):
            raise InputMissing(f"spec.source.files.path: there is no directory {self._parent.uri}")
        found = [
            Entry(f"{folder}/{entry.name}", entry.size, entry.mtime)
            for folder in self._folders()
            for entry in self._parent.list(folder)
            if fnmatch.fnmatchcase(entry.name, self._last) and entry.name[0] not in "_."
        ]
        return sorted(found, key=lambda entry: entry.name)

    def _folders(self) -> Sequence[str]:
        """The folders that match, relative to where the files' names begin."""
        files, pattern = file_system(self._spark, self._parent_path)
        _, root = file_system(self._spark, self._parent.uri)
        base = f"{files.makeQualified(root).toUri().getPath().rstrip('/')}/"
        found = files.globStatus(pattern) or ()
        folders = [each.getPath().toUri().getPath() for each in found if each.isDirectory()]
        names = [folder.removeprefix(base) for folder in folders]
        return [name for name in names if not any(part[0] in "_." for part in name.split("/"))]

    def sha256(self, name: str, first: int) -> str:
        """The hash of a file's ``first`` bytes."""
        return self.storage().sha256(name, first)

    def uri(self, name: str) -> str:
        """Where a file is."""
        return f"{self.storage().uri}/{name}"

    def storage(self) -> Storage:
        """Where the files are."""
        return self._as_folder() or self._parent

    def table_of(self, name: str) -> str:
        """The name of the table that a file's place stands for: the folders that match patterns of the path,
        with dots between; without such, its folder.
        """
        if self._many:
            return name.rpartition("/")[0].replace("/", ".")
        return self.storage().uri.rstrip("/").rpartition("/")[2]

    def _as_folder(self) -> Storage | None:
        # Asked anew each time: a folder may appear while the pipeline waits for it.
        return self._folder if self._folder is not None and self._folder.is_folder("") else None


def literal(uri: str) -> str:
    """``uri`` with the characters escaped that Hadoop would take for a pattern."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", uri)


def _is_pattern(text: str) -> bool:
    return _PATTERN.search(text) is not None


def _without_patterns(folder: str) -> str:
    """The folders before the first that is a pattern."""
    parts = folder.split("/")
    first = next(number for number, part in enumerate(parts) if _is_pattern(part))
    return "/".join(parts[:first]) or ("/" if folder.startswith("/") else ".")
