"""The Secrets that a manifest names, as directories with one file per key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.jdbc import Login

Secrets = Mapping[str, str | Path]
"""The directory of each secret."""


class LoginIncomplete(LakemirrorError):
    """A Secret lacks something that the login to a database needs."""


def login_at(field: str, url: str, secret: str | None, secrets: Secrets) -> Login:
    """Return the login for a database that the manifest's ``field`` names. Raises LoginIncomplete."""
    if secret is None:
        return Login(url)
    keys = read_secret(secret, secrets)
    missing = next((key for key in ("username", "password") if not keys.get(key, "").strip()), None)
    if missing is not None:
        raise LoginIncomplete(
            f"{field}: secret {secret} has no {missing}, and the database asks for a user and a password: "
            "add it to the secret"
        )
    user, password = (keys[key].rstrip("\r\n") for key in ("username", "password"))
    return Login(url, user, password)


def read_secret(name: str, secrets: Secrets) -> dict[str, str]:
    """Return the keys of a Secret from its directory, which has one file per key (as Kubernetes mounts it).

    Files that are not text are left out, such as a keystore beside the same certificates in PEM.
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
