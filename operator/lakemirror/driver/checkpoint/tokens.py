"""One-time requests in the manifest, each made with a new token.

``spark.resetToken`` asks to start over, and ``tables[].resyncToken`` to reread a single table.
``tokens.json`` beside the checkpoint records which tokens were acted upon. In a new checkpoint, all tokens
count as acted upon, because everything will be read anyway.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from lakemirror.api.spec import PipelineSpec
from lakemirror.driver.checkpoint import identity
from lakemirror.driver.checkpoint.storage import FileCutOff, Storage
from lakemirror.driver.errors import LakemirrorError

_HANDLED = "tokens.json"
_FEEDS = ("files", "spark", "kafka", "changes", "resync")
"""Folders that record how far the sources have been read."""


@dataclass(frozen=True)
class Tokens:
    """The reset token, and ``resync``, which maps the source of a listed table to its token.

    ``targets`` maps it to the target into which the table was read again, even if its source had nothing.
    """

    reset: str = ""
    resync: dict[str, str] = field(default_factory=dict)
    targets: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: PipelineSpec) -> Tokens:
        """Return the tokens in a manifest. Those of suspended tables have to wait."""
        listed = [table for table in spec.tables if table.resync_token and not table.suspend]
        listed = [table for table in listed if table.snapshot == "source"]
        return cls(spec.spark.reset_token, {table.source: table.resync_token for table in listed})


def loads(spec: PipelineSpec) -> dict[str, str]:
    """Return the tokens of the listed tables that are loaded from their database, by source.

    An empty token is a token, too.
    """
    listed = [table for table in spec.tables if table.snapshot == "jdbc" and not table.suspend]
    return {table.source: table.resync_token for table in listed}


def begin(storage: Storage, spec: PipelineSpec) -> dict[str, str]:
    """Act upon a new reset token, and return the tables to read again, with their tokens.

    Tables are reread from the source, or loaded from their database (`loads`). The checkpoint's owner must
    call this before it opens a feed. A reset forgets how far the source was read, and nothing else: mirrors
    and tombstones stay, so changes that are read again still find their place. Raises LakemirrorError if the
    checkpoint is damaged, unless a reset is asked for.
    """
    asked, handled = Tokens.of(spec), _handled(storage)
    reset = asked.reset not in ("", handled.reset)
    if not identity.exists(storage):
        if not identity.has_progress(storage):
            _write(storage, asked)
            return loads(spec)
        if not reset:
            raise identity.damaged(storage, "it says how far the source was read, but metadata.json is gone")
    if reset:
        for folder in _FEEDS:
            storage.delete_folder(folder)
        identity.forget(storage)
        _write(storage, asked)
        return loads(spec)
    return _left(spec, handled)


def reread(storage: Storage, spec: PipelineSpec) -> set[str]:
    """Return the listed tables that are read again into the target that they have now, or that were."""
    handled = _handled(storage)
    here = {source for source, target in handled.targets.items() if _target(spec, source) == target}
    return here | _left(spec, handled).keys()


def waiting(storage: Storage, spec: PipelineSpec) -> set[str]:
    """Return the listed tables that are yet to be read again because of their tokens."""
    return set(_left(spec, _handled(storage)))


def _left(spec: PipelineSpec, handled: Tokens) -> dict[str, str]:
    asked = {**Tokens.of(spec).resync, **loads(spec)}
    return {source: token for source, token in asked.items() if handled.resync.get(source) != token}


def resynced(storage: Storage, done: Mapping[str, str], spec: PipelineSpec) -> None:
    """Record that these tables were read again from the source."""
    loaded(storage, done, spec)
    storage.delete_folder("resync")


def loaded(storage: Storage, done: Mapping[str, str], spec: PipelineSpec) -> None:
    """Record that these tables were loaded from their database."""
    handled = _handled(storage)
    targets = {source: _target(spec, source) for source in done}
    _write(storage, Tokens(handled.reset, {**handled.resync, **done}, {**handled.targets, **targets}))


def _target(spec: PipelineSpec, source: str) -> str:
    """Return the target of a listed table, with its placeholders."""
    own = next((table.target for table in spec.tables if table.source == source), None)
    return (own or spec.target).template


def resync_folder(wanted: Mapping[str, str]) -> str:
    """Return the folder in which a resync keeps its progress. Each set of tokens has a folder of its own."""
    text = json.dumps(dict(wanted), sort_keys=True)
    return f"resync/{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _handled(storage: Storage) -> Tokens:
    try:
        document = json.loads(storage.read_text(_HANDLED))
        return Tokens(document["reset"], document["resync"], document.get("targets", {}))
    except FileNotFoundError:
        return Tokens()
    except (ValueError, TypeError, KeyError, FileCutOff) as error:
        raise LakemirrorError(
            f"{storage.uri}/{_HANDLED} is damaged ({error}): restore it from a copy, or delete it, so that "
            "all is done again that the tokens ask for"
        ) from None


def _write(storage: Storage, tokens: Tokens) -> None:
    text = json.dumps(asdict(tokens), indent=2, sort_keys=True)
    storage.write_text(_HANDLED, text + "\n")
