"""What a registry answers, and what is said when it does not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakemirror.api.source import SchemaRegistry
from lakemirror.driver.read.registry import (
    CONTENT_IDS,
    GLOBAL_IDS,
    GUIDS,
    IDS,
    NotAnsweredFor,
    NotOfThisRegistry,
    Reference,
    RegistryClient,
    RegistryUnreachable,
)
from lakemirror.driver.read.watch import SourceWatch
from tests.support.registry import Registry, serving

pytestmark = pytest.mark.guarantee(
    "Avro is read with the schema that each record was written with, wherever the record names it; the "
    "driver waits for an unavailable registry"
)

ONE, SEVEN = (Reference(IDS, number.to_bytes(4, "big")) for number in (1, 7))


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as registry:
        yield registry


def client(
    registry: Registry, watch: SourceWatch | None = None, path: str = "", **secret: Path
) -> RegistryClient:
    names = list(secret)
    spec = SchemaRegistry(url=registry.url + path, secret=names[0] if names else None)
    return RegistryClient(spec, secret, watch or SourceWatch())


def test_a_schema_and_those_that_it_refers_to(registry: Registry) -> None:
    place = {"name": "geo.Place", "subject": "geo/place", "version": 2}
    point = {"name": "geo.Point", "subject": "point", "version": 1}
    registry.schemas[7] = {"schema": "outer", "references": [place]}
    registry.subjects["geo%2Fplace", 2] = {"schema": "place", "references": [point]}
    registry.subjects["point", 1] = {"schema": "point"}
    found = client(registry).schema(SEVEN)
    assert found is not None
    assert (found.text, found.kind, found.referenced) == ("outer", "AVRO", ("point", "place"))


def test_a_schema_by_its_guid(registry: Registry) -> None:
    guid = "89791762-2336-4186-9674-299b90a802e2"
    registry.guids[guid] = {"schema": "x"}
    reference = Reference(GUIDS, bytes.fromhex(guid.replace("-", "")))
    assert str(reference) == f"schema {guid}"
    found = client(registry).schema(reference)
    assert found is not None
    assert found.text == "x"
    with pytest.raises(NotOfThisRegistry, match="named by a GUID"):
        client(registry, path="/apis/registry/v3").schema(reference)


@pytest.mark.parametrize("path", ["/apis/ccompat/v7", "/apis/registry/v2", "/apis/registry/v3/"])
def test_a_schema_of_apicurios_own_api_and_those_that_it_refers_to(path: str, registry: Registry) -> None:
    content = "/content" if "v3" in path else ""
    place, point = "groups/geo%2Fown/artifacts/place/versions/2", "groups/default/artifacts/point/versions/1"
    registry.own = {
        "ids/globalIds/7": '"outer"',
        "ids/globalIds/7/references": "["
        '{"groupId": "geo/own", "artifactId": "place", "version": "2", "name": "Place"}]',
        f"{place}{content}": '"place"',
        f"{place}/references": '[{"groupId": null, "artifactId": "point", "version": "1", "name": "Point"}]',
        f"{point}{content}": '"point"',
        f"{point}/references": "[]",
        "ids/contentIds/7": '"other"',
        "ids/contentIds/7/references": "[]",
    }
    registry.schemas[7] = {"schema": "by id"}
    asking = client(registry, path=path)
    long = (7).to_bytes(8, "big")
    found = asking.schema(Reference(GLOBAL_IDS, long))
    assert found is not None
    assert (found.text, found.referenced) == ('"outer"', ('"point"', '"place"'))
    texts = [asking.schema(each) for each in (Reference(CONTENT_IDS, long), SEVEN)]
    by_id = "by id" if "ccompat" in path else '"other"'
    assert [each and each.text for each in texts] == ['"other"', by_id]
    assert asking.schema(Reference(CONTENT_IDS, (8).to_bytes(8, "big"))) is None
    del registry.own[f"{point}{content}"]
    with pytest.raises(NotAnsweredFor, match="refers to point, version 1, which is not in the registry"):
        asking.schema(Reference(GLOBAL_IDS, long))


def test_an_id_of_apicurios_where_the_address_is_not_its(registry: Registry) -> None:
    with pytest.raises(NotOfThisRegistry, match=r"named as Apicurio's registry has it, .*/apis/registry/v2"):
        client(registry).schema(Reference(GLOBAL_IDS, bytes(7) + b"\x07"))
    assert registry.asked == []


def test_no_such_schema(registry: Registry) -> None:
    assert client(registry).schema(SEVEN) is None


def test_username_and_password_of_the_secret(registry: Registry, tmp_path: Path) -> None:
    registry.login, registry.schemas[1] = ("reader", "s3cret"), {"schema": "x"}
    for name, text in (("username", "reader\n"), ("password", "s3cret\n")):
        (tmp_path / name).write_text(text)
    assert client(registry, auth=tmp_path).schema(ONE) is not None
    with pytest.raises(RegistryUnreachable, match=r"401 Unauthorized: check the username and password"):
        client(registry).schema(ONE)


@pytest.mark.parametrize("status", [500, 503, 404])
def test_what_does_not_answer_as_a_registry(status: int, registry: Registry) -> None:
    watch = SourceWatch()
    registry.fails = status
    if status == 404:  # a page of a proxy
        registry.fails = None
        registry.answer = lambda path, authorization: (404, "no such page")  # type: ignore[method-assign]
    with pytest.raises(RegistryUnreachable, match=rf"answers {status} "):
        client(registry, watch).schema(ONE)
    assert (watch.lost or "").startswith(f"the schema registry {registry.url}")


DEEP = b'{"schema": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("status", "answer", "why"),
    [
        (400, {"error_code": 400}, "answers 400 Bad Request and no schema"),
        (403, {"error_code": 40301}, "answers 403 Forbidden and no schema (the secret may lack a right)"),
        (404, b"<html>not here</html>", "answers 404 Not Found and no schema"),
        (422, {"error_code": 42201}, "answers 422 "),
        (500, {"error_code": 50001}, "answers 500 "),
        (302, "http://169.254.169.254/latest", "redirects to http://169.254.169.254/latest"),
        (200, b"x" * 5 * 2**20, "answers with more than 4 MiB"),
        (200, {"schema": {"type": "int"}}, "answers 200 OK and no schema"),
        (200, {"schema": "x", "references": {"name": "a"}}, "whose references are no list"),
        (200, {"schema": "x", "references": [{"name": "a"}]}, "lacks one of name, subject, version"),
        (200, {"schema": "x", "references": ["a"]}, "lacks one of name, subject, version"),
        (200, DEEP, "answers 200 OK and no schema"),
    ],
)
def test_an_answer_about_one_name_is_about_that_name(
    status: int, answer: Any, why: str, registry: Registry
) -> None:
    """Whoever may write to a topic, or register schemas, must not make all tables wait."""
    watch, registry.schemas[1] = SourceWatch(), {"schema": "x"}
    registry.odd["/schemas/ids/7"] = status, answer
    asking = client(registry, watch)
    with pytest.raises(NotAnsweredFor, match=re.escape(why)):
        asking.schema(SEVEN)
    assert watch.lost is None
    assert asking.schema(ONE) is not None
    assert all("169.254" not in path for path in registry.asked)


def chain(length: int, last: list[dict[str, Any]], text: str = "y") -> dict[int, dict[str, Any]]:
    """Schemas by version, each of which refers to the next one."""
    after = {number: [reference(number + 1)] for number in range(length - 1)} | {length - 1: last}
    return {number: {"schema": text, "references": after[number]} for number in range(length)}


def reference(number: int) -> dict[str, Any]:
    return {"name": f"n{number}", "subject": "s", "artifactId": f"a{number}", "version": number}


REFERRING = {
    "to many": (
        [reference(n) for n in range(200)],
        {number: {"schema": "y"} for number in range(200)},
    ),
    "to many, one through the other": ([reference(0)], chain(2000, [])),
    "to itself": ([reference(0)], chain(1, [reference(0)])),
    "to itself through others": ([reference(0)], chain(3, [reference(1)])),
    "to long ones": ([reference(0)], chain(3, [], "y" * 2**21)),
}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("case", REFERRING)
def test_a_schema_refers_to_a_limited_number_of_others(registry: Registry, case: str, own: bool) -> None:
    """Whoever may register schemas has them refer to each other as far as the registry permits."""
    first, others = REFERRING[case]
    registry.schemas[7] = {"schema": "x", "references": first}
    registry.own = {"ids/globalIds/7": '"x"', "ids/globalIds/7/references": json.dumps(first)}
    for number, each in others.items():
        registry.subjects["s", number] = each
        place = f"groups/default/artifacts/a{number}/versions/{number}"
        registry.own[place] = json.dumps(each["schema"])
        registry.own[f"{place}/references"] = json.dumps(each.get("references", []))
    asked = Reference(GLOBAL_IDS, SEVEN.raw) if own else SEVEN
    why = {"to itself": "is among those that it", "to long ones": "more than 4 MiB of others"}
    wanted = why.get(case.removesuffix(" through others"), "refers to too many others")
    with pytest.raises(NotAnsweredFor, match=wanted):
        client(registry, path="/apis/ccompat/v7" if own else "").schema(asked)
    assert len(registry.asked) < 250


def test_a_registry_that_is_away_and_comes_back(registry: Registry) -> None:
    watch, registry.schemas[1] = SourceWatch(), {"schema": "x"}
    with watch.asking():
        pass
    gone = RegistryClient(SchemaRegistry(url="http://127.0.0.1:1"), {}, watch)
    with pytest.raises(RegistryUnreachable, match=r"http://127\.0\.0\.1:1: .*refused"):
        gone.schema(ONE)
    with watch.asking():  # the brokers answer, which does not bring the registry back
        pass
    assert "refused" in (watch.lost or "")
    client(registry, watch).schema(ONE)
    assert watch.lost is None
