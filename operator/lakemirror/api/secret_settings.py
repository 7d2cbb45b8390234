"""Settings of Spark whose values are passwords or keys, which do not belong in a manifest.

Anyone who may read pipelines or ConfigMaps would read them there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lakemirror.api.logins import in_setting

_SECRET = re.compile(
    r"(passw(or)?d|passphrase|secret|token|secret[._]?(access[._]?)?key|account\.key|private\.key)"
    # Azure's settings may end with the account, or container and account, that they are for.
    r"(\.[\w.-]+\.(dfs|blob)\.[\w.-]+)?$",
    re.IGNORECASE,
)
"""By how they end, so that classes, files, endpoints and patterns are none: ``credentials.provider``,
``secret.file``, ``token.endpoint``, ``redaction.regex``. An access key's ID is a name, and no secret.
"""
_OF_KUBERNETES = re.compile(
    r"spark\.kubernetes\.(driver|executor)\.(secrets|secretKeyRef|label|annotation)\."
)
"""Settings that end with a name of the user's, and refer to a Secret or have nothing to do with one."""


def exposed(conf: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield settings that hold a password or key in plain text, by name, each with what to do instead."""
    for name, value in conf.items():
        if in_setting(value):
            yield (
                name,
                "contains an address with a password, which anyone who may read the pipeline or its "
                "ConfigMap would see: keep it in a Secret (docs/object-stores.md, Keys and passwords)",
            )
            continue
        if not value or not _SECRET.search(name) or _OF_KUBERNETES.match(name):
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
