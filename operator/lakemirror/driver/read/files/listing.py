"""The files that ``source.files.path`` names: a folder, a pattern, or one file."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from lakemirror.driver.checkpoint.storage import Entry, LocalStorage, Storage, file_system, open_storage
from lakemirror.driver.errors import LakemirrorError

_PATTERN: Final = re.compile(r"[*?\[]")
_IN_BRACES: Final = re.compile(r"\[[^\]]+\]|[{},]")
"""What matters in a path with braces. A set of characters is taken whole: its braces stand for themselves."""

OUTSIDE: Final = "it is a link to "
"""How the reasons begin for which a file waits that leads out of the folder."""
NO_NAME: Final = "its name "
"""How the reasons begin for which a file waits whose name Spark or Hadoop cannot take."""


class InputMissing(LakemirrorError):
    """The files to read do not exist."""


class Inputs:
    """Files by name, relative to the last folder of the path that is not a pattern.

    ``suffixes`` select files in a folder. A pattern makes its own selection.
    """

    def __init__(self, path: str, spark: SparkSession, suffixes: tuple[str, ...]) -> None:
        self._path, self._spark, self._suffixes = path.rstrip("/") or "/", spark, suffixes
        self._lasts: dict[str, list[str]] = {}
        """The last parts of the path by their parent folder: several if the path has braces."""
        for each in alternatives(self._path):
            parent, _, last = each.rpartition("/")
            self._lasts.setdefault(parent or ("/" if path.startswith("/") else "."), []).append(last)
        self._many = len(self._lasts) > 1 or any(map(_is_pattern, self._lasts))
        root = _without_patterns(self._path) if self._many else next(iter(self._lasts))
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
        [lasts] = self._lasts.values()
        if self._folder is not None and _is_hidden(lasts[0]):
            raise InputMissing(
                f"spec.source.files.path: {self._path} is a hidden file, which Spark does not read: give it "
                "a name that does not begin with _ or . nor end with ._COPYING_"
            )
        found = [entry for entry in self._parent.list() if _matches(entry, lasts)]
        if not found and (self._folder is not None or not self._parent.is_folder("")):
            raise InputMissing(f"spec.source.files.path: there is no file or directory {self._path}")
        return found

    def _in_folders(self) -> list[Entry]:
        if not self._parent.is_folder(""):
            raise InputMissing(f"spec.source.files.path: there is no directory {self._parent.uri}")
        found = {
            name: Entry(name, entry.size, entry.mtime)
            for parent, lasts in self._lasts.items()
            for folder in self._folders(parent)
            for entry in self._parent.list(folder)
            if _matches(entry, lasts)
            for name in [f"{folder}/{entry.name}".lstrip("/")]
        }
        return [found[name] for name in sorted(found)]

    def _folders(self, parent: str) -> Sequence[str]:
        """Return the folders that match ``parent``, relative to the root of the file names."""
        files, pattern = file_system(self._spark, parent)
        _, root = file_system(self._spark, self._parent.uri)
        base = files.makeQualified(root).toUri().getPath().rstrip("/")
        found = files.globStatus(pattern) or ()
        folders = [each.getPath().toUri().getPath() for each in found if each.isDirectory()]
        names = [folder.removeprefix(base).strip("/") for folder in folders]
        return [name for name in names if not any(part[:1] in ("_", ".") for part in name.split("/"))]

    def sha256(self, name: str, first: int) -> str:
        """Return the SHA-256 of a file's ``first`` bytes."""
        return self.storage().sha256(name, first)

    def outside(self, name: str) -> str | None:
        """Return why a file is not to be read that is a link out of the folder, or None.

        Only local files have links. The folder is the last one of the path that is not a pattern, and may be
        a link itself.
        """
        storage = self.storage()
        if not isinstance(storage, LocalStorage):
            return None
        real = real_path_outside(storage.path, name)
        return None if real is None else f"{OUTSIDE}{real}, which is not in {storage.path}"

    def nameless(self, name: str) -> str | None:
        """Return why a file is not to be read that has an impossible name, or None."""
        return impossible_name(name, local=isinstance(self.storage(), LocalStorage))

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
            folders = name.rpartition("/")[0].replace("/", ".")
            if folders:
                return folders
        return self.storage().uri.rstrip("/").rpartition("/")[2]

    def _as_folder(self) -> Storage | None:
        # Checked each time: a folder may appear while the pipeline waits for it.
        return self._folder if self._folder is not None and self._folder.is_folder("") else None


def impossible_name(name: str, *, local: bool) -> str | None:
    """Return why Spark and Hadoop cannot read a file of this name, or None if they can.

    Python has a lone surrogate for each byte that is none of UTF-8 (PEP 383). Hadoop takes what is before a
    colon for the scheme of a URI: in the last part of a local path, because the name of its checksum file is
    made of it, and in each part of a path that is looked for as a pattern (`literal`).
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        return f"{NO_NAME}is not valid UTF-8"
    if local and ":" in name.rpartition("/")[2]:
        return f"{NO_NAME}has a colon, which Hadoop cannot read in the name of a local file"
    if ":" in name and literal(name) != name:
        return f"{NO_NAME}has a colon beside one of \\*?[]{{}}, which Hadoop takes for a pattern"
    return None


def real_path_outside(folder: Path, name: str) -> Path | None:
    """Return where a file really is, if links lead out of the folder, and otherwise None.

    A link to another place in the folder is fine: this is how Kubernetes mounts a ConfigMap.
    """
    real, top = Path(os.path.realpath(folder / name)), Path(os.path.realpath(folder))
    return None if real.is_relative_to(top) else real


def literal(uri: str) -> str:
    """Return ``uri`` with the characters escaped that Hadoop would interpret as a pattern."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", uri)


def _is_hidden(name: str) -> bool:
    """Return whether Spark skips files of this name (HadoopFSUtils.shouldFilterOutPathName).

    It would read nothing, and the file would count as applied.
    """
    return name[:1] in ("_", ".") or name.endswith("._COPYING_")


def alternatives(path: str) -> list[str]:
    """Return what a path with braces stands for: ``{a,b{1,2}}`` for ``a``, ``b1`` and ``b2``.

    A brace without its counterpart stands for itself.
    """
    starts: list[int] = []
    commas: list[list[int]] = []
    for token in _IN_BRACES.finditer(path):
        if token[0] == "{":
            starts.append(token.start())
            commas.append([])
        elif token[0] == "," and commas:
            commas[-1].append(token.start())
        elif token[0] == "}" and starts:
            start, ends = starts.pop(), [*commas.pop(), token.start()]
            begins = [start + 1, *[end + 1 for end in ends[:-1]]]
            before, after = path[:start], path[token.end() :]
            parts = [path[begin:end] for begin, end in zip(begins, ends, strict=True)]
            return list(dict.fromkeys(each for part in parts for each in alternatives(before + part + after)))
    return [path]


def _matches(entry: Entry, patterns: Sequence[str]) -> bool:
    found = any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in patterns)
    return found and not _is_hidden(entry.name)


def _is_pattern(text: str) -> bool:
    return _PATTERN.search(text) is not None or alternatives(text) != [text]


def _without_patterns(path: str) -> str:
    """Return the part of the path before the first folder that is a pattern."""
    return re.split(r"[*?\[{]", path, maxsplit=1)[0].rpartition("/")[0] or (
        "/" if path.startswith("/") else "."
    )
