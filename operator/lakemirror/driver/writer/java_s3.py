"""Asks Hadoop's client of S3 (S3A) how it reaches a bucket, and with which keys.

Whatever gives S3A its keys (settings, a credential store, the environment, the identity of a service account,
an instance profile, an assumed role, a class of the user's) is asked through S3A itself, so that there is no
second opinion about their order. These are internals of hadoop-aws 3.5, so check this module when you change
the version.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import get_ident
from typing import Any, Final

from pyspark.sql import SparkSession

from lakemirror.driver.java import java_class
from lakemirror.driver.writer.s3_access import (
    ASKED,
    HEADERS,
    PREFIX,
    SCHEME,
    Access,
    Keys,
    NotTranslated,
    Secret,
    access_of,
    has_own_endpoint,
)

_CLIENT: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_PURPOSE: Final = "Lakemirror's tasks"
_SESSION: Final = "software.amazon.awssdk.auth.credentials.AwsSessionCredentials"
_BASIC: Final = "software.amazon.awssdk.auth.credentials.AwsBasicCredentials"
_NOT_CACHED: Final = "fs.s3a.impl.disable.cache"
_LOGIN: Final = ("proxy.username", "proxy.password")
_TRUSTED: Final = "javax.net.ssl.trustStore"
_OF_JVM: Final = ("http.proxyHost", "https.proxyHost", "aws.endpointUrl", "aws.endpointUrlS3")
_LOGGERS: Final = [logging.getLogger(f"py4j.{name}") for name in ("clientserver", "java_gateway")]
_OF_ENVIRONMENT: Final = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")


class Client:
    """Hadoop's client for the bucket of a URI.

    Raises NotTranslated, now or later, for a bucket that can be reached by S3A only.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._spark = spark
        self._bucket = uri.removeprefix(SCHEME).partition("/")[0]
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        self._files = java_class(spark, "org.apache.hadoop.fs.Path")(uri).getFileSystem(conf)
        if self._files.getClass().getName() != _CLIENT:
            raise NotTranslated(f"its file system is {self._files.getClass().getName()}")
        if conf.getBoolean(_NOT_CACHED, False):
            raise NotTranslated(f"{_NOT_CACHED} is true")
        self._access = self._found()

    def access(self) -> Access:
        """Return how the bucket is reached now: keys may change from time to time."""
        shared = self._files.getS3AInternals().shareCredentials(_PURPOSE)
        try:
            with _unlogged():
                return replace(self._access, keys=_keys(shared.resolveCredentials()))
        finally:
            shared.close()

    def _found(self) -> Access:
        conf = self._files.getConf()  # with the settings of this bucket in the place of the general ones
        settings = {name: str(conf.getTrimmed(PREFIX + name) or "") for name in ASKED}
        there = (prefix for prefix in HEADERS if conf.getPropsWithPrefix(PREFIX + prefix).size())
        settings |= dict.fromkeys(there, "set")
        internals = self._files.getS3AInternals()
        region = str(internals.getAmazonS3Client(_PURPOSE).serviceClientConfiguration().region().id())
        if not has_own_endpoint(settings):
            region = str(internals.getBucketMetadata().bucketRegion() or region)
        login = [self._password(conf, name) for name in _LOGIN] if settings["proxy.host"] else [None]
        user = None if None in login else (Secret(str(login[0])), Secret(str(login[1])))
        found = access_of(self._bucket, settings, region, user)
        self._require_plain_jvm(encrypted=found.endpoint.startswith("https:"))
        return found

    def _require_plain_jvm(self, *, encrypted: bool) -> None:
        """Refuse what S3A has from the JVM, and not from its settings."""
        system = java_class(self._spark, "java.lang.System")
        for name in (*_OF_JVM, *((_TRUSTED,) if encrypted else ())):
            if system.getProperty(name):
                raise NotTranslated(f"the JVM has the property {name}")
        for name in _OF_ENVIRONMENT:
            if system.getenv(name):
                raise NotTranslated(f"the environment has {name}")

    def _password(self, conf: Any, name: str) -> str | None:
        """Return a password as S3A finds it: of this bucket or of all, in a credential store or a setting."""
        for each in (f"{PREFIX}bucket.{self._bucket}.{name}", f"{PREFIX}{name}"):
            found = conf.getPassword(each)
            if found is not None:
                with _unlogged():
                    return str(java_class(self._spark, "java.lang.String").valueOf(found))
        return None


@contextmanager
def _unlogged() -> Iterator[None]:
    """Have Py4J log nothing that this thread is told by the JVM: at the level DEBUG, it logs every answer."""
    thread = get_ident()

    def is_of_another(record: logging.LogRecord) -> bool:
        return record.thread != thread

    for each in _LOGGERS:
        each.addFilter(is_of_another)
    try:
        yield
    finally:
        for each in _LOGGERS:
            each.removeFilter(is_of_another)


def _keys(credentials: Any) -> Keys | None:
    kind = str(credentials.getClass().getName())
    if kind not in (_SESSION, _BASIC):
        raise NotTranslated(f"its keys are of the class {kind}")
    if credentials.accessKeyId() is None:
        return None
    token = Secret(str(credentials.sessionToken())) if kind == _SESSION else None
    return Keys(Secret(str(credentials.accessKeyId())), Secret(str(credentials.secretAccessKey())), token)
