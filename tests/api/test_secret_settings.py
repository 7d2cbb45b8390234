"""Settings of Spark that are passwords or keys are refused; others, which only sound so, are not."""

from __future__ import annotations

import re

import pytest

from lakemirror.api.secret_settings import REDACTION, exposed, redaction
from lakemirror.controller.sparkconf import submitted
from tests.controller.builders import spec

pytestmark = pytest.mark.guarantee(
    "No object, log line or report has a password or key from a Secret; a manifest that contains one is "
    "refused"
)

SECRETS = [
    "spark.authenticate.secret",
    "spark.connect.authenticate.token",
    "spark.executorEnv.AWS_SECRET_ACCESS_KEY",
    "spark.executorEnv.AWS_SESSION_TOKEN",
    "spark.hadoop.fs.azure.account.key",
    "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
    "spark.hadoop.fs.azure.account.oauth2.client.secret",
    "spark.hadoop.fs.azure.account.oauth2.client.secret.lake.dfs.core.windows.net",
    "spark.hadoop.fs.azure.account.oauth2.refresh.token",
    "spark.hadoop.fs.azure.account.oauth2.user.password",
    "spark.hadoop.fs.azure.sas.fixed.token",
    "spark.hadoop.fs.azure.sas.container.lake.blob.core.windows.net",
    "spark.hadoop.fs.azure.sas.fixed.token.container.lake.dfs.core.windows.net",
    "spark.hadoop.fs.gs.auth.client.secret",
    "spark.hadoop.fs.gs.auth.refresh.token",
    "spark.hadoop.fs.gs.auth.service.account.private.key",
    "spark.hadoop.fs.s3a.bucket.lake.secret.key",
    "spark.hadoop.fs.s3a.proxy.password",
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.s3a.session.token",
    "spark.hadoop.javax.jdo.option.ConnectionPassword",
    "spark.kafka.clusters.shop.ssl.keystore.password",
    "spark.kubernetes.authenticate.driver.oauthToken",
    "spark.sql.catalog.unity.auth.oauth.clientSecret",
    "spark.sql.catalog.unity.token",
    "spark.sql.catalog.rest.credential",
    "spark.executorEnv.VENDOR_API_KEY",
    "spark.hadoop.vendor.apikey",
    "spark.kafka.sasl.jaas.config",
    "spark.ssl.keyStorePassword",
]
ADDRESSES = [
    "https://metrics.example.com/push?apikey=Kn0ck-kn0ck",
    "https://lake.blob.core.windows.net/c?sv=2024&sig=Kn0ck-kn0ck",
    "http://user:Kn0ck-kn0ck@proxy:3128",
    "jdbc:postgresql://db/metastore?user=u&password=Kn0ck-kn0ck",
    "-Dhttp.proxyPassword=Kn0ck-kn0ck",
]
HARMLESS = [
    "spark.authenticate",
    "spark.authenticate.secret.file",
    "spark.authenticate.secretBitLength",
    "spark.hadoop.fs.azure.account.auth.type",
    "spark.hadoop.fs.azure.account.keyprovider.lake.dfs.core.windows.net",
    "spark.hadoop.fs.azure.account.oauth.provider.type",
    "spark.hadoop.fs.azure.account.oauth2.client.id",
    "spark.hadoop.fs.azure.account.oauth2.refresh.token.endpoint",
    "spark.hadoop.fs.azure.account.oauth2.token.file",
    "spark.hadoop.fs.azure.sas.token.provider.type",
    "spark.hadoop.fs.gs.auth.access.token.provider",
    "spark.hadoop.fs.gs.auth.service.account.json.keyfile",
    "spark.hadoop.fs.gs.auth.service.account.private.key.id",
    "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.s3a.aws.credentials.provider",
    "spark.hadoop.fs.s3a.delegation.token.binding",
    "spark.hadoop.fs.s3a.encryption.key",
    "spark.hadoop.hadoop.security.credential.provider.path",
    "spark.hadoop.hadoop.security.credstore.java-keystore-provider.password-file",
    "spark.io.encryption.keySizeBits",
    "spark.kafka.clusters.shop.sasl.token.mechanism",
    "spark.kubernetes.authenticate.driver.oauthTokenFile",
    "spark.kubernetes.driver.secrets.shop-token",
    "spark.kubernetes.executor.secretKeyRef.AWS_SECRET_ACCESS_KEY",
    "spark.kubernetes.kerberos.tokenSecret.name",
    "spark.redaction.regex",
    "spark.redaction.string.regex",
    "spark.security.credentials.hive.enabled",
    "spark.sql.redaction.options.regex",
    "spark.ssl.rpc.privateKey",
]


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_refused_without_being_repeated(name: str) -> None:
    [(found, message)] = exposed({name: "Kn0ck-kn0ck"})
    assert found == name
    assert "Kn0ck" not in message
    assert list(exposed({name: ""})) == []


@pytest.mark.parametrize("name", SECRETS)
def test_a_reference_is_not(name: str) -> None:
    hadoop, spark = "${env.KEY_1}", "${env:KEY_1}"
    right, wrong = (hadoop, spark) if name.startswith("spark.hadoop.") else (spark, hadoop)
    assert list(exposed({name: right})) == []
    for value in (wrong, f"{right}x", right.replace("}", ":-x}"), "${other.setting}"):
        assert [found for found, _ in exposed({name: value})] == [name], value


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_sounds_like_a_secret_is_not(name: str) -> None:
    assert list(exposed({name: "x"})) == []


@pytest.mark.parametrize("value", ADDRESSES)
def test_a_secret_in_a_value_is_refused_without_being_repeated(value: str) -> None:
    name = "spark.driver.extraJavaOptions" if value.startswith("-D") else "spark.hadoop.vendor.address"
    [(found, message)] = exposed({name: value})
    assert found == name
    assert "Kn0ck" not in message


def test_a_key_of_s3_is_a_secret_unless_it_names_one_of_kms() -> None:
    key = "spark.hadoop.fs.s3a.encryption.key"
    algorithm = "spark.hadoop.fs.s3a.encryption.algorithm"
    assert list(exposed({key: "arn:aws:kms:x", algorithm: "SSE-KMS"})) == []
    assert [name for name, _ in exposed({key: "x", algorithm: "SSE-C"})] == [key]


@pytest.mark.parametrize("also", ["", "(?i)house"])
def test_spark_hides_whatever_is_refused(also: str) -> None:
    """What an address is refused for stands in its value, which Spark looks at, too."""
    pattern = re.compile(redaction().replace("(?i:", "(?:", 1), re.IGNORECASE)
    for text in [*SECRETS, *ADDRESSES]:
        assert pattern.search(text), text
    assert redaction(also).startswith(redaction())
    assert submitted(spec(spark={"conf": {REDACTION: also}}), "image", "account")[REDACTION] == redaction(
        also
    )


def test_spark_hides_no_harmless_values() -> None:
    pattern = re.compile(redaction(), 0)
    for value in ("s3a://lake/x", "kafka:9092", "200", "org.apache.spark.sql.delta.catalog.DeltaCatalog"):
        assert not pattern.search(value), value
