"""Settings of Spark whose values are passwords or keys, which do not belong in a manifest.

Anyone who may read pipelines or ConfigMaps would read them there. One list of names says both what is refused
in a manifest and what Spark hides in its logs, plans and web pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lakemirror.api.logins import ADDRESSES_WITH_LOGIN, in_setting

_NAMES = (
    "passw(or)?d",
    "passphrase",
    "secret",
    "token",
    r"secret[._]?(access[._]?)?key",
    r"account\.key",
    r"private\.key",
    "credential(?!s)",  # of a catalog with OAuth: id:secret
    r"api[._-]?key",
    r"jaas\.config",
)
"""How their names end: ``credentials.provider``, ``secret.file``, ``token.endpoint`` and ``redaction.regex``
are classes, files, addresses and patterns. An access key's ID is a name, and no secret.
"""
_ACCOUNT = r"(\.[\w.-]+\.(dfs|blob)\.[\w.-]+)?"
"""Azure's settings may end with the account, or container and account, that they are for."""
_SECRET = re.compile(
    rf"({'|'.join(_NAMES)}){_ACCOUNT}$|^spark\.hadoop\.fs\.azure\.sas\.[^.]+\.[^.]+\.(dfs|blob)\.",
    re.IGNORECASE,
)
_OF_KUBERNETES = re.compile(
    r"spark\.kubernetes\.(driver|executor)\.(secrets|secretKeyRef|label|annotation)\."
)
"""Settings that end with a name of the user's, and refer to a Secret or have nothing to do with one."""
_S3_KEY = re.compile(
    r"(?P<of>spark\.hadoop\.fs\.s3a\.(bucket\.[^.]+\.)?)(encryption|server-side-encryption)[.-]?key"
)
_JAVA_OPTIONS = re.compile(r"spark\.(driver|executor)\.(extra|default)JavaOptions")
_PROPERTY = re.compile(rf"-D\S*?({'|'.join(_NAMES)})=(?!\$\{{)\S", re.IGNORECASE)
"""A property of the JVM with a password in plain text."""

REDACTION = "spark.redaction.regex"
_REDACTED = "|".join(
    (
        *_NAMES,
        "access[.]?key",
        r"keystore\.key",
        "encryption[.-]?key",
        r"azure\.sas\.",
        "jaas",
        *ADDRESSES_WITH_LOGIN,
    )
)


def redaction(also: str = "") -> str:
    """Return the value of Spark's ``spark.redaction.regex``, which may hide more than ours, but never less.

    Spark hides settings and options whose name or value matches. ``also`` is the user's own pattern.
    """
    return f"(?i:{_REDACTED})" + (f"|(?:{also})" if also else "")


def exposed(conf: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield settings that hold a password or key in plain text, by name, each with what to do instead."""
    for name, value in conf.items():
        if in_setting(value):
            yield (
                name,
                "contains an address with a password or key, which anyone who may read the pipeline or its "
                "ConfigMap would see: keep it in a Secret (docs/object-stores.md, Keys and passwords)",
            )
            continue
        if _JAVA_OPTIONS.fullmatch(name) and _PROPERTY.search(value):
            yield (
                name,
                "sets a password or key, which anyone who may read the pipeline or its ConfigMap would see: "
                "keep it in a Secret that the podTemplate mounts, and name the file here",
            )
            continue
        if not value or not _is_secret(name, conf) or _OF_KUBERNETES.match(name):
            continue
        hadoop = name.startswith("spark.hadoop.")
        if re.fullmatch(r"\$\{env\.\w+\}" if hadoop else r"\$\{env:\w+\}", value):
            continue
        instead = (
            "give it to the driver and its executors as an environment variable, and write ${env.NAME} here"
            if hadoop
            else "write it into a file spark-defaults.conf"
        )
        yield (
            name,
            "is a password or key, which anyone who may read the pipeline or its ConfigMap would see: keep "
            f"it in a Secret, {instead} (docs/object-stores.md, Keys and passwords)",
        )


def _is_secret(name: str, conf: Mapping[str, str]) -> bool:
    """Return whether a setting's value is a secret. A key of S3 is one with SSE-C; with KMS it is a name."""
    found = _S3_KEY.fullmatch(name)
    if found is None:
        return _SECRET.search(name) is not None
    algorithms = (f"{found['of']}encryption.algorithm", f"{found['of']}server-side-encryption-algorithm")
    return any(conf.get(each, "").upper() == "SSE-C" for each in algorithms)
