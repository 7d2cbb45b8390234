"""How a bucket is reached follows from the settings of Hadoop's client, or it is not reached at all."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from lakemirror.driver.writer.s3_access import (
    ASKED,
    Access,
    Keys,
    NotTranslated,
    Secret,
    access_of,
    has_own_endpoint,
)

LOGIN = Secret("me@x"), Secret("pass:word/")
PATH = {"path.style.access": "true"}
OF_AWS = "https://lake.s3.us-east-1.amazonaws.com"


def access(bucket: str = "lake", region: str = "eu-west-1", login: Any = None, **settings: str) -> Access:
    return access_of(
        bucket, {name.replace("__", "."): each for name, each in settings.items()}, region, login
    )


def place(found: Access) -> tuple[str, bool]:
    return found.endpoint, found.in_host


@pytest.mark.parametrize(
    ("bucket", "region", "settings", "expected"),
    [
        ("lake", "eu-west-1", {}, ("https://lake.s3.eu-west-1.amazonaws.com", True)),
        ("lake", "cn-north-1", {}, ("https://lake.s3.cn-north-1.amazonaws.com.cn", True)),
        ("lake", "us-gov-west-1", {}, ("https://lake.s3.us-gov-west-1.amazonaws.com", True)),
        # Without an endpoint of its own, the setting for encryption means nothing.
        (
            "lake",
            "us-east-1",
            {"connection.ssl.enabled": "false"},
            ("https://lake.s3.us-east-1.amazonaws.com", True),
        ),
        ("lake", "us-east-1", PATH, ("https://s3.us-east-1.amazonaws.com", False)),
        ("a.b", "us-east-1", {}, ("https://s3.us-east-1.amazonaws.com", False)),
        (
            "lake",
            "us-east-1",
            {"endpoint": "s3.amazonaws.com"},
            ("https://lake.s3.us-east-1.amazonaws.com", True),
        ),
        ("lake", "x", {"endpoint": "store.example"}, ("https://lake.store.example", True)),
        ("lake", "x", {"endpoint": "https://store.example:9000/"}, ("https://lake.store.example:9000", True)),
        ("lake", "x", {"endpoint": "http://store.example", **PATH}, ("http://store.example", False)),
        ("lake", "x", {"endpoint": "store", "connection.ssl.enabled": "False"}, ("http://lake.store", True)),
        ("a.b", "x", {"endpoint": "http://store.example"}, ("http://a.b.store.example", True)),
        ("a.b", "x", {"endpoint": "https://store.example"}, ("https://store.example", False)),
        ("Lake_1", "x", {"endpoint": "https://store.example"}, ("https://store.example", False)),
        ("lake", "x", {"endpoint": "http://127.0.0.1:9000"}, ("http://127.0.0.1:9000", False)),
        ("lake", "x", {"endpoint": "http://[::1]:9000"}, ("http://[::1]:9000", False)),
        ("lake", "x", {"endpoint": " https://store.example ", **PATH}, ("https://store.example", False)),
    ],
)
def test_where_a_bucket_is(
    bucket: str, region: str, settings: dict[str, str], expected: tuple[str, bool]
) -> None:
    found = access_of(bucket, settings, region)
    assert place(found) == expected
    assert (found.bucket, found.region, found.keys, found.proxy) == (bucket, region, None, None)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"encryption.algorithm": "SSE-KMS"}, "encryption.algorithm"),
        ({"server-side-encryption-algorithm": "AES256"}, "server-side-encryption-algorithm"),
        ({"accesspoint.arn": "arn:aws:s3:eu-west-1:1:accesspoint/x"}, "accesspoint.arn"),
        ({"requester.pays.enabled": "TRUE"}, "requester.pays.enabled"),
        ({"endpoint.fips": "true"}, "endpoint.fips"),
        ({"access.grants.enabled": "true"}, "access.grants.enabled"),
        ({"custom.signers": "a:b.C"}, "custom.signers"),
        ({"signing-algorithm": "NoOpSignerType"}, "signing-algorithm"),
        ({"acl.default": "BucketOwnerFullControl"}, "acl.default"),
        ({"create.storage.class": "intelligent_tiering"}, "create.storage.class"),
        ({"create.header.": "set"}, "create.header."),
        ({"client.s3.custom.headers": "set"}, "client.s3.custom.headers"),
        ({"proxy.host": "p", "proxy.domain": "d"}, "proxy.domain"),
        ({"s3.client.factory.impl": "a.B"}, "s3.client.factory.impl is a.B"),
        ({"impl": "a.B"}, "impl is a.B"),
        ({"endpoint": "https://store.example/below"}, "endpoint"),
        ({"endpoint": "https://user:pass@store.example"}, "endpoint"),
        ({"endpoint": "ftp://store.example"}, "endpoint"),
    ],
)
def test_what_is_left_to_hadoops_client(settings: dict[str, str], named: str) -> None:
    with pytest.raises(NotTranslated, match=named) as raised:
        access_of("lake", settings, "eu-west-1")
    assert "pass" not in str(raised.value)


def test_buckets_and_regions_that_are_left_to_hadoops_client() -> None:
    with pytest.raises(NotTranslated, match="Express"):
        access(bucket="lake--euw1-az1--x-s3")
    with pytest.raises(NotTranslated, match="us-iso-east-1"):
        access(region="us-iso-east-1")
    assert place(access(region="us-iso-east-1", endpoint="https://store.example"))[1]


def test_settings_with_their_defaults_change_nothing() -> None:
    given = {
        **dict.fromkeys(ASKED, ""),
        "requester.pays.enabled": "false",
        "s3.client.factory.impl": "org.apache.hadoop.fs.s3a.DefaultS3ClientFactory",
        "impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    }
    assert access_of("lake", given, "eu-west-1") == access()


def test_an_endpoint_is_one_of_its_own_unless_it_is_that_of_aws() -> None:
    assert not has_own_endpoint({})
    assert not has_own_endpoint({"endpoint": " "})
    assert not has_own_endpoint({"endpoint": "https://s3.amazonaws.com"})
    assert has_own_endpoint({"endpoint": "s3.eu-west-1.amazonaws.com"})


@pytest.mark.parametrize(
    ("settings", "login", "expected"),
    [
        ({"proxy.host": "p"}, None, "http://p:80"),
        ({"proxy.host": "p", "proxy.ssl.enabled": "true"}, None, "https://p:443"),
        ({"proxy.host": "p", "proxy.port": "3128"}, LOGIN, "http://me%40x:pass%3Aword%2F@p:3128"),
        ({"proxy.port": "3128"}, LOGIN, None),
    ],
)
def test_proxies(settings: dict[str, str], login: Any, expected: str | None) -> None:
    found = access_of("lake", settings, "x", login).proxy
    assert (found and found.text) == expected


def test_how_often_requests_are_sent_again() -> None:
    assert access().attempts == 12
    given = {"attempts.maximum": "2", "retry.limit": "3"}
    assert access_of("lake", given, "x").attempts == 5
    assert access_of("lake", {"retry.limit": "many"}, "x").attempts == 12


def test_secrets_are_not_shown() -> None:
    keys = Keys(Secret("AKIAXYZ"), Secret("hidden"), Secret("hidden, too"))
    found = Access("lake", "https://s", "x", False, 1, Secret("http://a:hidden@p"), keys)
    for text in (repr(found), str(found), f"{found}", f"{keys!s} {keys.secret_key}", "%s" % found.proxy):  # noqa: UP031
        assert "hidden" not in text
        assert "AKIA" not in text
    assert pickle.loads(pickle.dumps(found)) == found
    assert hash(found) == hash(pickle.loads(pickle.dumps(found)))
