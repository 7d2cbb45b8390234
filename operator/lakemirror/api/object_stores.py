"""Object stores: which Delta log store makes commits to each atomic, and which settings would undo that.

Commits to a Delta table are safe with several writers if one of two that write the same version of its log
fails. A file system with an exclusive rename guarantees that on its own. An object store guarantees it
through a condition on the request, which has to be asked for; a log store does so.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

CONDITIONAL_LOG_STORE: Final = "io.lakemirror.delta.ConditionalPutLogStore"
CONDITIONAL_FILE_MANAGER: Final = "io.lakemirror.delta.ConditionalPutFileManager"
FILE_MANAGER_SETTING: Final = "spark.sql.streaming.checkpointFileManagerClass"
ONE_LOG_STORE_SETTING: Final = "spark.delta.logStore.class"
CONDITION: Final = "fs.option.create.conditional.overwrite"
"""Hadoop's option of a create that the store itself refuses where the file is there (3.4.2 and later)."""


@dataclass(frozen=True)
class ObjectStore:
    """A kind of object store.

    ``name`` is its word in OBJECT_STORES (of the image) and LAKEMIRROR_OBJECT_STORES, ``file_system``
    Hadoop's class for it, ``log_store`` the class that makes commits atomic. Files are created exclusively by
    a put with a ``condition`` that has to be asked for, by every plain ``create``, or by a ``rename``.
    """

    name: str
    title: str
    schemes: tuple[str, ...]
    file_system: str
    log_store: str
    creates_by: Literal["condition", "create", "rename"]


STORES: Final = (
    ObjectStore(
        "s3",
        "S3",
        ("s3a", "s3", "s3n"),
        "org.apache.hadoop.fs.s3a.S3AFileSystem",
        CONDITIONAL_LOG_STORE,
        "condition",
    ),
    ObjectStore(
        "azure",
        "Azure Data Lake Storage",
        ("abfss", "abfs"),
        "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
        "io.delta.storage.AzureLogStore",
        "rename",
    ),
    ObjectStore(
        "gcs",
        "Google Cloud Storage",
        ("gs",),
        "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "io.delta.storage.GCSLogStore",
        "create",
    ),
)

_GOOGLE: Final = {
    "impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    "block.size": str(64 << 20),
    "rewrite.max.chunk.size": str(512 << 20),
    "outputstream.buffer.size": str(8 << 20),
    "inputstream.inplace.seek.limit": str(8 << 20),
    "inputstream.min.range.request.size": str(2 << 20),
}
"""Hadoop 3.5 sets these for its own connector, with units that Google's connector does not read.

Delta's log store is made for Google's connector. The values are the same.
"""

RENAMING: Final = ("file", "hdfs", "viewfs")
"""Schemes of file systems whose rename is exclusive, which is what Delta's default log store needs."""
RENAMING_LOG_STORE: Final = "io.delta.storage.HDFSLogStore"
LOCAL_LOG_STORE: Final = "io.lakemirror.delta.ListingLogStore"
"""The log store of local disks: commits as RENAMING_LOG_STORE, and lists only the new files of a log."""

_OF_SCHEME: Final = re.compile(r"spark\.delta\.logStore\.(\w+)\.impl")
_CONDITIONAL: Final = re.compile(r"spark\.hadoop\.fs\.s3a\.(bucket\..+\.)?create\.conditional\.enabled")


def store_of(uri: str) -> ObjectStore | None:
    """Return the object store of a URI, by its scheme; None for other file systems."""
    scheme = uri.partition(":")[0].lower()
    return next((store for store in STORES if scheme in store.schemes), None)


def unknown_scheme(uri: str) -> str | None:
    """Return why no table can be at a URI: it is not known what makes commits there atomic. None if it is."""
    scheme = urlsplit(uri).scheme.lower()
    if not scheme or scheme in RENAMING or store_of(uri) is not None:
        return None
    known = [*RENAMING, *(each for store in STORES for each in store.schemes)]
    why = f"it is not known what makes commits to {scheme}:// atomic. Use one of {', '.join(known)}"
    return (
        f"{why}; the address of an S3 server belongs into {ENDPOINT}" if scheme in ("http", "https") else why
    )


ENDPOINT: Final = "spec.spark.conf: spark.hadoop.fs.s3a.endpoint"


def one_spelling(path: str) -> str:
    """Return a path as all its other spellings are returned.

    A store has one scheme, a local path has none, and there are no superfluous slashes and dots.
    """
    scheme, mark, rest = path.partition("://")
    if not mark or scheme.lower() == "file":
        return re.sub("^//+", "/", posixpath.normpath(re.sub("^file:(//)?", "", path, flags=re.IGNORECASE)))
    store = store_of(path)
    return f"{store.schemes[0] if store is not None else scheme}://{posixpath.normpath(rest)}"


def is_inside(path: str, folder: str) -> bool:
    """Return whether ``path`` is ``folder`` or lies below it."""
    inner, outer = one_spelling(path), one_spelling(folder)
    return inner == outer or inner.startswith(f"{outer.rstrip('/')}/")


def setting_of(scheme: str) -> str:
    """Return the Spark setting that names the log store of a scheme."""
    return f"spark.delta.logStore.{scheme}.impl"


def session_settings() -> dict[str, str]:
    """Return Spark settings of a session: the log store of each scheme, and what Google's connector needs."""
    log_stores = {setting_of(scheme): store.log_store for store in STORES for scheme in store.schemes}
    log_stores[setting_of("file")] = LOCAL_LOG_STORE
    return log_stores | {f"spark.hadoop.fs.gs.{name}": value for name, value in _GOOGLE.items()}


def unsafe(conf: Mapping[str, str], checkpoint: str) -> Iterator[tuple[str, str]]:
    """Yield unsafe Spark settings by name, each with the reason why it is refused.

    With these, two drivers could commit the same version of a table, or the same batch of the ``checkpoint``.
    """
    for name, value in conf.items():
        scheme = _OF_SCHEME.fullmatch(name)
        if name == ONE_LOG_STORE_SETTING:
            yield name, "is one log store for all file systems, and each has one that is safe: leave it out"
        elif scheme is not None and (right := safe_log_stores(scheme[1].lower())) and value not in right:
            yield name, f"{value} is not known to be safe with several writers: leave it out, for {right[0]}"
        elif _CONDITIONAL.fullmatch(name) and value.strip().lower() != "true":
            yield name, "without conditional puts two drivers could commit one version: leave it out"
        elif name == FILE_MANAGER_SETTING and value != CONDITIONAL_FILE_MANAGER and renames_badly(checkpoint):
            why = "is not known to be safe with several drivers on an object store"
            yield name, f"{value} {why}: leave it out, for {CONDITIONAL_FILE_MANAGER}"


def renames_badly(uri: str) -> bool:
    """Return whether the URI leads to a store whose rename copies, so that files must be created in place."""
    store = store_of(uri)
    return store is not None and store.creates_by != "rename"


def safe_log_stores(scheme: str) -> tuple[str, ...]:
    """Return the safe log stores of a scheme, the one that sessions get first; none for an unknown scheme."""
    store = store_of(f"{scheme}://")
    if store is not None:
        return (store.log_store,)
    if scheme == "file":
        return LOCAL_LOG_STORE, RENAMING_LOG_STORE
    return (RENAMING_LOG_STORE,) if scheme in RENAMING else ()
