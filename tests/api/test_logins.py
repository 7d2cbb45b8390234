"""A login in an address is refused wherever an address can stand, and no message repeats it."""

from __future__ import annotations

from typing import Any

import pytest

from lakemirror.api import CdcPipeline, ManifestError
from lakemirror.api.supported import not_supported
from tests.controller.builders import document, merged

SECRET = "s3cr3t"

JDBC = [
    f"jdbc:postgresql://u:{SECRET}@db/x",
    f"jdbc:postgresql://db/x?user=u&password={SECRET}",
    f"jdbc:postgresql://db/x?sslmode=require&sslpassword={SECRET}",
    f"jdbc:postgresql://u:{SECRET}/1?2@db/x",
    f"jdbc:mysql://root:{SECRET}@db/",
    f"jdbc:mysql://root:{SECRET}@a:3306,root:{SECRET}@b:3306/x",
    f"jdbc:mysql://address=(host=db)(port=3306)(user=u)(password={SECRET})/x",
    f"jdbc:mysql://(host=db,user=u,password={SECRET})/x",
    f"jdbc:mysql://db/x?username=u&password1={SECRET}",
    f"jdbc:mysql:loadbalance://u:{SECRET}@a,b/x",
    f"jdbc:mariadb://db/?keyStorePassword={SECRET}",
    f"jdbc:mariadb://db/?p%61ssword={SECRET}",
    f"jdbc:mariadb://db/?PWD = {SECRET}",
    f"jdbc:oracle:thin:scott/{SECRET}@db",
]
PATHS = [
    f"{scheme}://id:{SECRET}@host/x"
    for scheme in ("s3a", "s3", "S3N", "gs", "hdfs", "ftp", "sftp", "http", "abfss", "wasbs", "webhdfs")
] + [
    f"s3a://AKIA:{SECRET}/with/slashes@lake/x",
    f"s3a://AKIA:{SECRET}+/x@lake",
    f"https://lake.blob.core.windows.net/c/x?sv=2024&sig={SECRET}",
    f"https://host/x?apikey={SECRET}",
    f"https://host/x?a=b&access%5Ftoken={SECRET}",
]
HARMLESS = [
    "abfss://container@account.dfs.core.windows.net/x",
    "hdfs://nn:8020/a@b",
    "hdfs://nn:8020/a:b@c",
    "sftp://user@host/x",
    "s3a://lake/a:b@c",
    "/data/a:b@c",
    "s3a://lake/x",
]


def places(address: str) -> list[dict[str, Any]]:
    """Where the path of a file system can stand in a spec."""
    files = {"files": {"path": address, "format": "json", "table": "public.a"}, "kafka": None}
    template = f"{address}/{{table}}"
    return [
        {"checkpoint": address},
        {"target": {"path": template}},
        {"tables": [{"source": "public.a", "target": {"path": address}}]},
        {"verify": {"snapshot": {"path": template}}},
        {"source": files},
        {"source": {"kafka": None, "changeFeed": {"path": address}}},
    ]


def refused(change: dict[str, Any]) -> str:
    try:
        spec = CdcPipeline.from_dict(document(**change)).spec
    except ManifestError as error:
        return str(error)
    return "\n".join(message for _, message in not_supported(spec))


@pytest.mark.parametrize("address", PATHS)
def test_a_path_with_a_login_is_refused_wherever_it_stands(address: str) -> None:
    for change in places(address):
        message = refused(change)
        assert "Secret" in message, change
        assert SECRET not in message


@pytest.mark.parametrize("address", HARMLESS)
def test_a_path_without_a_login_is_not(address: str) -> None:
    for change in places(address):
        assert "Secret" not in refused(change)


@pytest.mark.parametrize("url", JDBC)
def test_a_database_with_a_login_is_refused_wherever_it_stands(url: str) -> None:
    for change in (
        {"verify": {"jdbc": {"url": url}}},
        {"target": {"path": None, "table": "m.{table}", "jdbc": {"url": url}}},
    ):
        message = refused(change)
        assert message
        assert SECRET not in message


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:postgresql://db:5432/x?sslmode=require&ApplicationName=a",
        "jdbc:mariadb://a,b:3307/x",
        "jdbc:mysql://db/",
    ],
)
def test_a_database_without_one_is_not(url: str) -> None:
    assert refused({"target": {"path": None, "table": "m.{table}", "jdbc": {"url": url}}}) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"envelope": {"encoding": "avro", "schemaRegistry": {"url": f"http://u:{SECRET}@registry:8081"}}},
        {
            "source": {
                "kafka": {
                    "security": {
                        "protocol": "SASL_SSL",
                        "mechanism": "OAUTHBEARER",
                        "secret": "s",
                        "oauth": {"tokenEndpointUrl": f"https://u:{SECRET}@login.example.org/token"},
                    }
                }
            }
        },
        {"source": {"kafka": {"bootstrapServers": f"SASL://u:{SECRET}@kafka:9092"}}},
        {"spark": {"conf": {"spark.hadoop.fs.s3a.endpoint": f"http://u:{SECRET}@minio:9000"}}},
        {
            "spark": {
                "conf": {
                    "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:mysql://db/x?password={SECRET}"
                }
            }
        },
    ],
)  # fmt: skip
def test_so_it_is_in_other_addresses(change: dict[str, Any]) -> None:
    message = refused(merged({}, change))
    assert message
    assert SECRET not in message
