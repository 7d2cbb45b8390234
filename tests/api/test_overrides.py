"""``--set``: single fields of a manifest replaced."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from lakemirror.api import CdcPipeline, ManifestError, with_overrides
from tests.api.manifests import SMALL


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("target.path=/x/{schema}/{table}", ["target", "path"], "/x/{schema}/{table}"),
        ("spec.target.path=/x/{table}", ["target", "path"], "/x/{table}"),
        ("target.path={table}", ["target", "path"], "{table}"),
        ("target.path={schema}/{table}", ["target", "path"], "{schema}/{table}"),
        ("checkpoint=s3a://lake/c", ["checkpoint"], "s3a://lake/c"),
        ("checkpoint=a=b", ["checkpoint"], "a=b"),
        ("source.files.maxFilesPerBatch=7", ["source", "files", "maxFilesPerBatch"], 7),
        ("suspend=true", ["suspend"], True),
        ('restartToken="1"', ["restartToken"], "1"),
        ("trigger.interval=1s", ["trigger", "interval"], "1s"),
        ("spark.conf[spark.ui.enabled]='false'", ["spark", "conf", "spark.ui.enabled"], "false"),
        ("spark.imagePullSecrets=[a, b]", ["spark", "imagePullSecrets"], ["a", "b"]),
    ],
)
def test_a_field_is_set(setting: str, path: list[str], value: Any) -> None:
    before = copy.deepcopy(SMALL)
    here = with_overrides(SMALL, [setting])["spec"]
    for part in path:
        here = here[part]
    assert here == value
    assert before == SMALL


def test_settings_of_tables_are_found_by_their_source_or_added() -> None:
    document = with_overrides(SMALL, ["tables[public.a].mode=append", "tables[public.a].primaryKey=[id]"])
    document = with_overrides(document, ["tables[public.b].suspend=true", "tables[public.a].mode=scd1"])
    assert document["spec"]["tables"] == [
        {"source": "public.a", "mode": "scd1", "primaryKey": ["id"]},
        {"source": "public.b", "suspend": True},
    ]
    CdcPipeline.from_dict(document)


def test_an_empty_value_removes_the_field() -> None:
    document = with_overrides(SMALL, ["target.path=", "target.table=lake.{table}", "trigger.interval="])
    assert document["spec"]["target"] == {"table": "lake.{table}"}


@pytest.mark.parametrize("setting", ["target.path", "=x", ".a=b", "a..b=c", "tables[=x", "a.=b"])
def test_what_is_no_setting(setting: str) -> None:
    with pytest.raises(ManifestError, match="write PATH=VALUE"):
        with_overrides(SMALL, [setting])


def test_a_field_of_what_has_no_fields() -> None:
    with pytest.raises(ManifestError, match=r"--set checkpoint\.a\.b=1: a is looked for in something"):
        with_overrides(SMALL, ["checkpoint.a.b=1"])
    with pytest.raises(ManifestError, match=r"--set checkpoint\.a=1: checkpoint has no fields"):
        with_overrides(SMALL, ["checkpoint.a=1"])


def test_a_wrong_name_is_told_by_the_checks() -> None:
    with pytest.raises(ManifestError) as caught:
        CdcPipeline.from_dict(with_overrides(SMALL, ["source.files.pth=x"]))
    assert caught.value.errors[0][0] == "spec.source.files.pth"
