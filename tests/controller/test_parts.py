"""The small parts of the loop: the queue, the Lease, the canary, claims."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from lakemirror.api import API_VERSION, KIND
from lakemirror.controller import cache as cache_module
from lakemirror.controller import names
from lakemirror.controller.cache import Cache, Key
from lakemirror.controller.claims import Claim, Claimants, claims, meet
from lakemirror.controller.kube import Unreachable, Watched
from lakemirror.controller.lease import Lease, LeaseLost
from lakemirror.controller.queue import Queue
from lakemirror.controller.values import Object
from lakemirror.controller.vitals import SILENT_SECONDS, Vitals
from tests.controller.builders import spec
from tests.controller.fake_api import FakeApi
from tests.controller.test_loop import in_loop


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class TestQueue:
    @in_loop
    async def test_what_is_added_often_is_worked_on_once(self) -> None:
        queue: Queue[str] = Queue()
        for _ in range(3):
            queue.add("a")
        queue.add("b")
        assert [await queue.get(), await queue.get()] == ["a", "b"]
        assert len(queue) == 0

    @in_loop
    async def test_a_key_is_never_worked_on_twice_at_a_time(self) -> None:
        queue: Queue[str] = Queue()
        queue.add("a")
        assert await queue.get() == "a"
        queue.add("a")
        again = asyncio.create_task(queue.get())
        await asyncio.sleep(0.02)
        assert not again.done()
        queue.done("a")
        assert await again == "a"

    @in_loop
    async def test_what_is_wanted_sooner_comes_sooner(self) -> None:
        queue: Queue[str] = Queue()
        queue.add("late", 30)
        queue.add("a", 30)
        queue.add("a", 0.02)
        queue.add("a", 60)
        assert await queue.get() == "a"
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        waiting.cancel()

    @in_loop
    async def test_what_is_forgotten_does_not_come(self) -> None:
        queue: Queue[str] = Queue()
        queue.add("a")
        queue.forget("a")
        queue.add("b")
        assert await queue.get() == "b"


def lease(api: FakeApi, identity: str, clock: Clock) -> Lease:
    return Lease(api, "ns", "operator", identity, clock)


@pytest.mark.guarantee(
    "Only one operator acts in a namespace; a former leader writes nothing more, even in the middle of a pass"
)
class TestLease:
    @in_loop
    async def test_one_of_two_has_it(self) -> None:
        api, clock = FakeApi(), Clock()
        one, two = lease(api, "one", clock), lease(api, "two", clock)
        assert await one.attempt()
        assert not await two.attempt()
        assert (one.held, two.held) == (True, False)

    @in_loop
    async def test_it_is_taken_over_when_it_is_not_renewed(self) -> None:
        api, clock = FakeApi(), Clock()
        one, two = lease(api, "one", clock), lease(api, "two", clock)
        await one.attempt()
        assert not await two.attempt()
        clock.now += 14
        assert not await two.attempt()
        await one.renew()
        clock.now += 14
        assert not await two.attempt()
        clock.now += 15
        assert not one.held
        assert await two.attempt()
        with pytest.raises(LeaseLost, match="two holds"):
            await one.renew()

    @in_loop
    async def test_who_cannot_renew_stops_before_another_can_begin(self) -> None:
        api, clock = FakeApi(), Clock()
        one, two = lease(api, "one", clock), lease(api, "two", clock)
        await one.attempt()
        await two.attempt()
        await api.cut()
        for _ in range(12):
            clock.now += 1
            await one.renew()
        assert not one.held
        api.restore()
        assert not await two.attempt()
        await one.renew()
        assert one.held, "nobody else had it: it goes on"

    @in_loop
    async def test_who_gives_it_back_lets_the_next_begin_at_once(self) -> None:
        api, clock = FakeApi(), Clock()
        one, two = lease(api, "one", clock), lease(api, "two", clock)
        await one.attempt()
        await one.release()
        assert await two.attempt()
        assert not one.held

    @in_loop
    async def test_an_answer_that_was_lost_is_no_reason_to_end(self) -> None:
        api, clock = FakeApi(), Clock()
        one = lease(api, "one", clock)
        await one.attempt()
        there = api.one("Lease", "operator")
        await api.put({**there, "spec": {**there["spec"], "renewTime": "later"}})
        await one.renew()
        await one.renew()
        assert one.held

    @in_loop
    async def test_a_lease_that_was_deleted_is_lost(self) -> None:
        api, clock = FakeApi(), Clock()
        one = lease(api, "one", clock)
        await one.attempt()
        await api.remove(api.one("Lease", "operator"))
        with pytest.raises(LeaseLost):
            await one.renew()


class TestVitals:
    def test_silence_is_trouble_only_after_the_first_beat(self) -> None:
        clock = Clock()
        vitals = Vitals(clock)
        clock.now += 1000
        assert vitals.trouble() is None
        vitals.beat()
        clock.now += SILENT_SECONDS
        assert vitals.trouble() is None
        clock.now += 1
        assert vitals.trouble() is not None
        vitals.beat()
        assert vitals.trouble() is None

    def test_a_dead_watch_is_trouble(self) -> None:
        vitals = Vitals()
        vitals.missed("ns/shop")
        assert "ns/shop" in (vitals.trouble() or "")


@pytest.mark.guarantee(
    "What a pipeline has, no other one gets, however old it is; nesting is a conflict, and a bucket or table "
    "is that of its endpoint or metastore; a conflict names nobody of another namespace"
)
class TestClaims:
    def shared(
        self, a: dict[str, Any], b: dict[str, Any], namespaces: tuple[str, str] = ("x", "y")
    ) -> set[str]:
        """What of the first pipeline's claims cannot be the second one's, too."""
        one, two = (claims(spec(**change), ns) for change, ns in zip((a, b), namespaces, strict=True))
        places: Claimants[str] = Claimants(lambda name: None)
        places.want("two", two)
        places.take("two", two)
        places.want("one", one)
        places.take("one", one)
        found = {claim for claim in one if any(meet(claim, theirs) for theirs in two)}
        assert found == one - places.held("one") == {claim for _, claim, _ in places.rivals("one")}
        places.want("two", frozenset())
        places.take("one", one)
        assert places.held("one") == one
        return {claim.what for claim in found}

    def test_the_same_spec_shares_all(self) -> None:
        assert self.shared({}, {}) == {"checkpoint", "target"}

    def test_spelling_does_not_matter(self) -> None:
        for scheme in ("s3", "s3n", "S3A"):
            place = f"{scheme}://lake/_checkpoints/shop/"
            assert self.shared({}, {"checkpoint": place, "target": {"path": "/other/{table}"}}) == {
                "checkpoint"
            }
        one, other = (
            {"checkpoint": f"{scheme}://c@a.net/c", "target": {"path": f"/{scheme}/{{table}}"}}
            for scheme in ("abfs", "abfss")
        )
        assert self.shared(one, other) == {"checkpoint"}

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({"path": "hdfs://nn.x/{table}"}, {"path": "HDFS://NN.x:8020/{table}"}),
            ({"table": "lake.{table}"}, {"table": "Lake.{table}"}),
            ({"table": "lake.{table}"}, {"table": "spark_catalog.LAKE.{table}"}),
            (
                {"table": "m.{table}", "jdbc": {"url": "jdbc:mysql://db.x/shop"}},
                {"table": "m.{table}", "jdbc": {"url": "jdbc:mariadb:sequential://db.x:3306/shop?a=b"}},
            ),
        ],
    )
    def test_spelling_of_targets_does_not_matter(self, one: dict[str, Any], other: dict[str, Any]) -> None:
        first, second = (
            {"checkpoint": f"s3a://{name}/c", "target": {"path": None} | target}
            for name, target in (("a", one), ("b", other))
        )
        assert self.shared(first, second) == {"target"}

    def test_local_paths_are_shared_inside_of_a_namespace_only(self) -> None:
        local = {"checkpoint": "/data/c", "target": {"path": "file:///data/{table}"}}
        assert self.shared(local, local) == set()
        assert self.shared(local, local, ("x", "x")) == {"checkpoint", "target"}

    def test_tables_of_two_databases_are_no_catalogs_and_not_each_others(self) -> None:
        table: dict[str, Any] = {"path": None, "table": "m.{table}"}
        one, other = (
            {"checkpoint": f"s3a://c/{db}", "target": {**table, "jdbc": {"url": f"jdbc:mariadb://{db}/"}}}
            for db in ("a", "b")
        )
        assert (
            self.shared(one, other) == self.shared(one, {"checkpoint": "s3a://d", "target": table}) == set()
        )
        assert self.shared(one, {**one, "checkpoint": "s3a://d"}, ("x", "x")) == {"target"}

    def test_listed_tables_share_what_they_have_in_common(self) -> None:
        def only(*sources: str) -> dict[str, Any]:
            return {
                "unlisted": "ignore",
                "tables": [{"source": s} for s in sources],
                "checkpoint": f"s3a://{sources}",
            }

        assert self.shared(only("public.a"), only("public.b")) == set()
        assert self.shared(only("public.a"), only("public.b", "public.a")) == {"target"}

    @pytest.mark.parametrize(
        ("inner", "outer", "shared"),
        [
            ({"checkpoint": "s3a://lake/cp/a/b"}, {"checkpoint": "s3a://lake/cp/a"}, {"checkpoint"}),
            ({"checkpoint": "s3://lake/cp//a/b/"}, {"checkpoint": "s3a://lake/cp"}, {"checkpoint"}),
            ({"target": {"path": "s3a://lake/cp/a/{table}"}}, {"checkpoint": "s3a://lake/cp/a"}, {"target"}),
            ({"target": {"path": "s3a://lake/cp/a/t_{table}"}}, {"checkpoint": "s3a://lake/cp"}, {"target"}),
            ({"target": {"path": "s3a://lake/cp"}}, {"checkpoint": "s3a://lake/cp"}, {"target"}),
            ({"checkpoint": "s3a://lake/all/c"}, {"target": {"path": "s3a://lake/all"}}, {"checkpoint"}),
            ({"target": {"path": "s3a://lake/a/{table}"}}, {"target": {"path": "s3a://lake/a"}}, {"target"}),
            ({"checkpoint": "s3a://lake/cp"}, {"target": {"path": "s3a://lake"}}, {"checkpoint"}),
            ({"checkpoint": "s3a://lake/cpx"}, {"checkpoint": "s3a://lake/cp"}, set()),
            ({"target": {"path": "s3a://lake/cp_{table}"}}, {"checkpoint": "s3a://lake/cp"}, set()),
            # Mirrors of a template stand side by side, and checkpoints between them.
            ({"checkpoint": "s3a://lake/_c/a"}, {"target": {"path": "s3a://lake/{schema}/{table}"}}, set()),
            ({"target": {"path": "s3a://lake/b/{table}"}}, {"target": {"path": "s3a://lake/{table}"}}, set()),
        ],
    )  # fmt: skip
    def test_nesting_is_sharing(self, inner: dict[str, Any], outer: dict[str, Any], shared: set[str]) -> None:
        def whole(change: dict[str, Any], other: str) -> dict[str, Any]:
            elsewhere = {"checkpoint": f"s3a://{other}/c", "target": {"path": f"s3a://{other}/{{table}}"}}
            fixed = "{" not in (elsewhere | change)["target"]["path"]
            only = {"unlisted": "ignore", "tables": [{"source": "public.a"}]} if fixed else {}
            return elsewhere | change | only

        assert self.shared(whole(inner, "one"), whole(outer, "two")) == shared
        assert bool(self.shared(whole(outer, "two"), whole(inner, "one"))) == bool(shared)

    @pytest.mark.parametrize(
        ("one", "two", "same"),
        [
            ("http://minio:9000", "http://minio:9000", False),  # each namespace has its own
            ("http://minio.x:9000", "minio.x.svc.cluster.local:9000", True),
            ("http://minio:9000", "http://minio.x.svc:9000/", True),
            ("http://10.0.0.1:9000", "http://10.0.0.1:9000", True),
            ("https://s3.example.org", "https://S3.example.org:443", True),
            ("https://s3.example.org", "https://s3.example.com", False),
            ("https://s3.eu-west-1.amazonaws.com", "", True),
            ("https://s3.example.org", "", False),
        ],
    )
    def test_a_bucket_is_that_of_its_endpoint(self, one: str, two: str, same: bool) -> None:
        def at(endpoint: str, name: str) -> dict[str, Any]:
            return {"spark": {"conf": {name: endpoint} if endpoint else {}}}

        general, of_bucket = "spark.hadoop.fs.s3a.endpoint", "spark.hadoop.fs.s3a.bucket.lake.endpoint"
        for names_of in ((general, general), (of_bucket, general)):
            a, b = at(one, names_of[0]), at(two, names_of[1])
            assert self.shared(a, b) == ({"checkpoint", "target"} if same else set())

    @pytest.mark.parametrize(
        ("one", "two", "same"),
        [
            ("thrift://metastore:9083", "thrift://metastore:9083", False),
            ("thrift://metastore.x:9083", "thrift://metastore.x.svc:9083", True),
            ("thrift://a.org:9083,thrift://b.org:9083", "thrift://b.org:9083,thrift://a.org:9083", True),
            ("thrift://metastore.one.org:9083", "thrift://metastore.two.org:9083", False),
            ("", "", True),
        ],
    )
    def test_a_table_is_that_of_its_metastore(self, one: str, two: str, same: bool) -> None:
        def at(uris: str, name: str) -> dict[str, Any]:
            conf = {"spark.hadoop.hive.metastore.uris": uris} if uris else {}
            table = {"path": None, "table": "lake.{table}"}
            return {"checkpoint": f"s3a://{name}/c", "target": table, "spark": {"conf": conf}}

        assert self.shared(at(one, "a"), at(two, "b")) == ({"target"} if same else set())

    def test_hosts_of_databases_and_of_hdfs_are_those_of_the_namespace(self) -> None:
        def at(url: str, name: str) -> dict[str, Any]:
            table = {"path": None, "table": "m.{table}", "jdbc": {"url": url}}
            return {"checkpoint": f"s3a://{name}/c", "target": table}

        url = "jdbc:postgresql://db/x"
        assert self.shared(at(url, "a"), at(url, "b")) == set()
        assert self.shared(at(url, "a"), at(f"{url}?sslmode=require", "b"), ("x", "x")) == {"target"}
        assert self.shared(at(url, "a"), at("jdbc:postgresql://db.x.svc:5432/x", "b")) == {"target"}
        hdfs = {"checkpoint": "hdfs://nn:8020/c", "target": {"path": "hdfs://nn:8020/{table}"}}
        assert self.shared(hdfs, hdfs) == set()
        assert self.shared(hdfs, hdfs, ("x", "x")) == {"checkpoint", "target"}

    @pytest.mark.parametrize("place", ["s3a://", "://x", "s3a:///", "hdfs://[::1]/x"])
    def test_whatever_is_written_claims_something(self, place: str) -> None:
        assert len(claims(spec(checkpoint=place, target={"path": f"{place}/{{table}}"}), "x")) == 2

    def test_what_one_has_nobody_else_gets_and_who_waits_is_told(self) -> None:
        told: list[str] = []
        places: Claimants[str] = Claimants(told.append)
        one = Claim("checkpoint", "s3a://lake/c")
        below = Claim("target", "s3a://lake/c/{table}")
        places.want("a", frozenset({one}))
        places.want("b", frozenset({below}))
        assert told == ["a"]
        places.take("b", {below})
        places.take("a", {one})
        assert (places.held("a"), places.held("b")) == (frozenset(), {below})
        told.clear()
        places.want("b", frozenset())
        assert "a" in told
        places.take("a", {one})
        assert places.held("a") == {one}
        places.want("a", frozenset())
        kept = (places._same, places._whole, places._below, places._held, places._wanted)
        assert not any(kept)


class TestCache:
    @in_loop
    async def test_a_list_after_a_gap_tells_of_what_is_new_and_of_nothing_else(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache_module, "_RETRY_SECONDS", 0.01)
        api, told = FakeApi(), list[str]()
        for name in "abc":
            await api.put(_config_map(name))
        cache = Cache(api, None, lambda key: told.append(key.name), lambda: datetime.now(UTC))
        watching = asyncio.create_task(cache.run())
        while cache.current_since("mirrors") is None:
            await asyncio.sleep(0.01)
        assert sorted(told) == ["a", "b", "c"]
        told.clear()
        await api.cut()
        while cache.current_since("mirrors") is not None:
            await asyncio.sleep(0.01)
        await api.put({**_config_map("b"), "data": {"x": "y"}})
        await api.remove(_config_map("c"))
        api.restore()
        while cache.current_since("mirrors") is None:
            await asyncio.sleep(0.01)
        assert sorted(told) == ["b", "c"]
        assert cache.of(Key("mirrors", "c")) == {}
        watching.cancel()

    @pytest.mark.guarantee(
        "An unchanged pipeline costs the operator next to nothing; in a full cluster, checks of thousands of "
        "waiting drivers do not flood the API server"
    )
    @in_loop
    async def test_a_watch_that_was_silent_leaves_nobody_waiting(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache_module, "_RETRY_SECONDS", 0.01)
        api, told = _Silent(), list[str]()
        cache = Cache(api, None, lambda key: told.append(key.name), lambda: datetime.now(UTC))
        watching = asyncio.create_task(cache.run())
        while cache.current_since("mirrors") is None:
            await asyncio.sleep(0.01)
        since = cache.current_since("mirrors")
        await api.put(_config_map("a"))
        while not told or api.broken < 50:
            assert cache.current_since("mirrors") == since
            await asyncio.sleep(0.01)
        assert told == ["a"]
        watching.cancel()


class _Silent(FakeApi):
    """Its watches tell nothing, and break soon."""

    broken = 0

    async def watch(self, *what: Any, labels: str = "") -> AsyncIterator[Watched]:
        await asyncio.sleep(0.02)
        self.broken += 1
        raise Unreachable("Timeout on reading data from socket")
        yield


def _config_map(name: str) -> Object:
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": name, "uid": f"uid-of-{name}"}
    metadata = {
        "name": f"{name}-config",
        "namespace": "mirrors",
        "labels": names.labels(name, "driver"),
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
