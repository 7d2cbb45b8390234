"""Which checkpoint a mirror belongs to, and when another checkpoint may take it over.

A checkpoint has an identity, ``checkpoint.json``, which is written once, with the name of its pipeline. It
survives a reset, a move and a copy. Each mirror has it among its properties, together with the place of the
checkpoint. Only if a mirror has the identity of another checkpoint does a driver look at that place.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakemirror.driver.checkpoint.owner import Owner, Use
from lakemirror.driver.checkpoint.storage import FileCutOff, LocalStorage, Storage, open_storage
from lakemirror.driver.errors import LakemirrorError

_FILE: Final = "checkpoint.json"
_REMEMBERED: Final = 5
"""Maximum number of former checkpoints that a mirror remembers."""


@dataclass(frozen=True)
class Possessor:
    """The checkpoint that a mirror belongs to.

    ``place`` is its URI, and ``former`` are the identities of those before it, the last one at the end.
    """

    id: str
    place: str
    former: tuple[str, ...] = ()

    def to_text(self) -> str:
        """Serialize it as the value of a table property."""
        return json.dumps({"id": self.id, "place": self.place, "former": list(self.former)})

    @classmethod
    def from_text(cls, text: str | None) -> Possessor | None:
        """Parse the output of `to_text`.

        None if the mirror names no checkpoint, as mirrors from before did. Raises ValueError.
        """
        if not text:
            return None
        try:
            document = json.loads(text)
            return cls(str(document["id"]), str(document["place"]), tuple(map(str, document["former"])))
        except (TypeError, KeyError) as error:
            raise ValueError(str(error)) from None

    def after(self, other: Possessor) -> Possessor:
        """Return the same checkpoint as the one that a mirror belongs to after ``other``."""
        before = [each for each in (*other.former, other.id) if each != self.id]
        return Possessor(self.id, self.place, tuple(before[-_REMEMBERED:]))


class AnotherPipeline(LakemirrorError):
    """The checkpoint belongs to a pipeline of another name."""


def stored(storage: Storage) -> Possessor | None:
    """Return the identity of the checkpoint at ``storage``, or None if it has none.

    Raises LakemirrorError if it is damaged.
    """
    found = _stored(storage)
    return None if found is None else found[0]


def _stored(storage: Storage) -> tuple[Possessor, str | None] | None:
    """Return the identity, and the name of the pipeline, which checkpoints of earlier versions lack."""
    try:
        document = json.loads(storage.read_text(_FILE))
        pipeline = document.get("pipeline")
        return Possessor(str(document["id"]), _place(storage)), pipeline and str(pipeline)
    except FileNotFoundError:
        return None
    except (FileCutOff, ValueError, TypeError, KeyError, AttributeError) as error:
        raise LakemirrorError(
            f"{storage.uri}/{_FILE} is damaged ({error}): restore it from a copy, or delete it, so that the "
            "checkpoint gets a new identity and takes its mirrors over"
        ) from None


def require_own(storage: Storage, pipeline: str) -> None:
    """Raise AnotherPipeline if the checkpoint at ``storage`` belongs to another pipeline.

    With the progress of another pipeline, this one would take its source for read.
    """
    found = _stored(storage)
    if found is not None and found[1] not in (None, pipeline):
        raise AnotherPipeline(
            f"spec.checkpoint: {storage.uri} is the checkpoint of the pipeline {found[1]}, and this is "
            f"{pipeline}: give this pipeline a checkpoint of its own"
        )


def _place(storage: Storage) -> str:
    """Return the URI of a checkpoint, by which it can be opened again."""
    return storage.path.as_uri() if isinstance(storage, LocalStorage) else storage.uri.rstrip("/")


def ensured(storage: Storage, pipeline: str | None = None) -> Possessor:
    """Return the identity of the checkpoint at ``storage``, and create it if there is none.

    It belongs to ``pipeline`` from then on. Only the owner of the checkpoint may call this. Raises
    LakemirrorError if it is damaged, and AnotherPipeline.
    """
    if pipeline is not None:
        require_own(storage, pipeline)
    found = _stored(storage)
    if found is None:
        storage.write_text_new(_FILE, _text(str(uuid.uuid4()), pipeline))
        found = _stored(storage)
    assert found is not None
    if pipeline is not None and found[1] is None:
        storage.write_text(_FILE, _text(found[0].id, pipeline))
    return found[0]


def _text(identity: str, pipeline: str | None) -> str:
    return json.dumps({"id": identity, **({} if pipeline is None else {"pipeline": pipeline})}) + "\n"


def is_of_another(named: str | None, ours: Possessor | None) -> bool:
    """Return whether a mirror's property names another checkpoint than ``ours``.

    One that cannot be read may do so. ``ours`` is None for a checkpoint from before there were identities.
    """
    try:
        possessor = Possessor.from_text(named)
    except ValueError:
        return True
    return possessor is not None and (ours is None or possessor.id != ours.id)


class Seen(Enum):
    """What there is at the place of another checkpoint, to which a mirror belongs."""

    GONE = auto()
    """No owner record, or another checkpoint."""
    RELEASED = auto()
    SILENT = auto()
    """Its owner record has not changed for its lease."""
    IN_USE = auto()
    UNREADABLE = auto()
    OURSELVES = auto()
    """The checkpoint that asks: the other one, if it exists, cannot be seen from here."""


class Verdict(Enum):
    """Whether a checkpoint may write a mirror. All but the last three may."""

    OURS = auto()
    BY_NAME = auto()
    """The mirror names no checkpoint, and this one has not written it yet: only names tell whose it is."""
    CLAIM = auto()
    """It is this checkpoint's, and has to say so."""
    RELEASED = auto()
    SILENT = auto()
    GONE = auto()
    IN_USE = auto()
    UNREADABLE = auto()
    LOST = auto()
    """It was this checkpoint's, until another one took it over that cannot be seen from here."""

    @property
    def takes_over(self) -> bool:
        """Whether the mirror is taken over from another checkpoint."""
        return self in (Verdict.RELEASED, Verdict.SILENT, Verdict.GONE)

    @property
    def refuses(self) -> bool:
        """Whether this checkpoint may not write the mirror."""
        return self in (Verdict.IN_USE, Verdict.UNREADABLE, Verdict.LOST)


def judge(
    ours: Possessor,
    named: Possessor | None,
    *,
    wrote: Callable[[], bool],
    look: Callable[[Possessor], Seen],
) -> Verdict:
    """Return whether a checkpoint may write a mirror that names a checkpoint, or none.

    ``wrote`` says whether the mirror's log has a transaction of this checkpoint. ``look`` looks at the other
    checkpoint. Each of them is called only if the answer depends on it.
    """
    if named is None:
        return Verdict.CLAIM if wrote() else Verdict.BY_NAME
    if named.id == ours.id:
        return Verdict.OURS if named.place == ours.place else Verdict.CLAIM
    seen = look(named)
    if seen is Seen.OURSELVES:  # a new checkpoint in the place of a lost one, unless it is older
        return Verdict.LOST if ours.id in named.former else Verdict.GONE
    return Verdict[seen.name]


@dataclass(frozen=True)
class _Record:
    """The text of an owner record, and when it was first seen, by this process's monotonic clock."""

    text: str
    since: float


class Neighbours:
    """What this process has seen of other checkpoints. Thread-safe.

    The first look at a running driver takes until it renews its owner record, and later ones no time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._records: dict[str, _Record] = {}

    def look(self, spark: SparkSession | None, ours: Possessor, other: Possessor) -> Seen:
        """Return what there is in the place of another checkpoint."""
        with self._lock:
            try:
                storage = open_storage(other.place, spark)
                there = stored(storage)
                if there is not None and there.id != other.id:
                    return Seen.OURSELVES if there.id == ours.id else Seen.GONE
                return self._seen(storage)
            except (OSError, Py4JJavaError, LakemirrorError):
                return Seen.UNREADABLE

    def _seen(self, storage: Storage) -> Seen:
        owner = Owner(storage)
        use, text, lease = owner.use()
        if use is not Use.UNKNOWN:
            self._records.pop(storage.uri, None)
            return Seen[use.name]
        known = self._records.get(storage.uri)
        if known is None:
            self._records[storage.uri] = _Record(text, self._clock())
            return Seen.SILENT if owner.is_silent() else Seen.IN_USE
        if known.text != text:
            self._records[storage.uri] = _Record(text, self._clock())
            return Seen.IN_USE
        return Seen.SILENT if self._clock() - known.since >= lease else Seen.IN_USE


NEIGHBOURS: Final = Neighbours()
"""Those of this process. All appliers share them: each replay has one of its own."""
