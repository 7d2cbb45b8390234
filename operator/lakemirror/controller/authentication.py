"""How a driver and its executors recognize each other, and encrypt what they send: settings and a Secret.

Sources: "Spark RPC" in Spark's security documentation; ``SecurityManager``, ``BasicExecutorFeatureStep`` and
``KubernetesExecutorBackend`` of Spark 4.2.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

FOLDER: Final = "/etc/lakemirror-authentication"
"""Where the Secret is mounted."""
KEY: Final = "secret"
"""The key, and file, that Spark reads."""
ENCODED_KEY: Final = "secret-base64"
"""The key with what Spark makes of that file. An executor needs it before it knows that it is on Kubernetes:

until the driver has told it all settings, it reads no file, but the environment variable ``VARIABLE``.
"""
VARIABLE: Final = "_SPARK_AUTH_SECRET"
_BYTES: Final = 32

ENCRYPTED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.authEngineVersion": "2",
        "spark.network.crypto.cipher": "AES/GCM/NoPadding",
        "spark.network.crypto.saslFallback": "false",
    }
)
"""What lets nobody connect who lacks the secret. Without a file, a driver makes one up, for itself alone."""
SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **ENCRYPTED,
        # Otherwise Spark would write the secret into the executors' pods, for all to see who may view them.
        "spark.authenticate.secret.file": f"{FOLDER}/{KEY}",
    }
)
"""The same for a driver with executors."""


def new_data() -> dict[str, str]:
    """Return the data of a new Secret: random bytes, in both forms."""
    encoded = b64encode(secrets.token_bytes(_BYTES))
    return {KEY: encoded.decode(), ENCODED_KEY: b64encode(encoded).decode()}
