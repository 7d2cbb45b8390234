"""Secrets that a manifest names, as directories with one file a key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lakemirror.driver.errors import LakemirrorError

Secrets = Mapping[str, str | Path]
"""The directory of each secret."""


def read_secret(name: str, secrets: Secrets) -> dict[str, str]:
    """The keys of a Secret from its directory, one file a key (as Kubernetes mounts it)."""
    if name not in secrets:
        raise LakemirrorError(
            f"the manifest names the secret {name}: say where it is with --secret {name}=DIR"
        )
    folder = Path(secrets[name])
    try:
        return {file.name: file.read_text("utf-8") for file in folder.iterdir() if file.is_file()}
    except OSError as error:
        raise LakemirrorError(f"secret {name}: {folder} cannot be read: {error.strerror}") from None
