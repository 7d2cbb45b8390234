"""Secrets that a manifest names, as directories with one file a key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lakemirror.driver.errors import LakemirrorError

Secrets = Mapping[str, str | Path]
"""The directory of each secret."""


def read_secret(name: str, secrets: Secrets) -> dict[str, str]:
    """The keys of a Secret from its directory, one file a key (as Kubernetes mounts it).

    Files that are no text, such as a keystore beside the same certificates in PEM, are left out.
    """
    if name not in secrets:
        raise LakemirrorError(
            f"the manifest names the secret {name}: say where it is with --secret {name}=DIR"
        )
    folder = Path(secrets[name])
    try:
        files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    except OSError as error:
        raise LakemirrorError(f"secret {name}: {folder} cannot be read: {error.strerror}") from None
    return {key: text for key, content in files.items() if (text := _text(content)) is not None}


def _text(content: bytes) -> str | None:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None
