"""The real driver, with Spark: from Kafka beside the cluster to Delta tables that equal the source's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from delta import DeltaTable
from pyspark.sql import SparkSession

from tests.cluster.kube import Kube, Object, eventually
from tests.cluster.mirror import Mirror, merged
from tests.cluster.network import Probe, require_enforcement
from tests.conformance.captures import Capture, wrong
from tests.support.kafka_broker import Broker, start_broker
from tests.support.mirroring import Mirroring
from tests.support.records import Record

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    pytest.mark.guarantee("Pipelines run on a real cluster"),
]

CAUGHT_UP_WITHIN = 420


@pytest.fixture(scope="module")
def broker(host: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start_broker(tmp_path_factory.mktemp("kafka"), host) as running:
        yield running


class Shop:
    """The captured shop on its way: from a broker, by a pipeline on the cluster, into a folder."""

    def __init__(self, kube: Kube, broker: Broker, folder: Path, image: str) -> None:
        self.mirror = Mirror(kube, "shop")
        # Names of its own, for the broker is shared.
        self.capture = Capture("inventory", as_db=f"shop{kube.namespace[-8:]}")
        self.broker, self.lake, self._image = broker, Mirroring(folder), image
        for topic, partitions in self._topics().items():
            broker.create_named(topic, partitions)

    def create(self, **spec: Any) -> None:
        self.mirror.kube.apply(self.mirror.manifest(**merged(self._spec(), spec)))

    def send(self, records: Sequence[Record]) -> None:
        for record in records:
            headers = [(name, None if text is None else text.encode()) for name, text in record["headers"]]
            self.broker.send(
                record["topic"],
                record["value"],
                key=record["key"],
                partition=record["partition"],
                headers=headers,
                timestamp=record["timestamp"],
            )
        self.broker.flush()

    def caught_up(self) -> None:
        """Return when all that is in Kafka now is applied."""
        since = datetime.now(UTC)

        def done() -> bool:
            checkpoint = self.mirror.status().get("checkpoint") or {}
            committed = checkpoint.get("committedAt")
            new = committed is not None and datetime.fromisoformat(committed) >= since
            return bool(new and checkpoint.get("caughtUp"))

        eventually(done, within=CAUGHT_UP_WITHIN, every=2, what="all that was sent applied")

    def check(self, spark: SparkSession) -> None:
        """The mirror equals the source's rows."""
        assert not wrong(self.capture.differences(spark, self.lake))

    def executors(self) -> list[Object]:
        selector = f"lakemirror.io/pipeline={self.mirror.name},app.kubernetes.io/component=executor"
        return self.mirror.kube.list("pod", selector)

    def _topics(self) -> dict[str, int]:
        topics: dict[str, int] = {}
        for record in self.capture.records:
            topics[record["topic"]] = max(topics.get(record["topic"], 0), record["partition"] + 1)
        return topics

    def _spec(self) -> Object:
        folder = str(self.lake.folder)
        mounts = [{"name": "lake", "mountPath": folder}]
        containers = [{"name": name, "volumeMounts": mounts} for name in ("driver", "executor")]
        volumes = [{"name": "lake", "hostPath": {"path": folder, "type": "Directory"}}]
        requests = {f"spark.kubernetes.{role}.request.cores": "100m" for role in ("driver", "executor")}
        return {
            "source": {
                "kafka": {"bootstrapServers": self.broker.bootstrap, "topics": sorted(self._topics())}
            },
            "target": {"path": f"{self.lake.lake}/{{db}}/{{schema}}/{{table}}"},
            "checkpoint": str(self.lake.checkpoint),
            "trigger": {"interval": "1s"},
            "spark": {
                "image": self._image,
                "driver": {"memory": "1g"},
                "executors": {"min": 1, "max": 1, "cores": 1, "memory": "1g"},
                "conf": {**requests, "spark.sql.shuffle.partitions": "2"},
                "podTemplate": {"spec": {"volumes": volumes, "containers": containers}},
            },
        }


@pytest.fixture
def shop(kube: Kube, broker: Broker, shared: Path, driver_image: str) -> Shop:
    # The lake is a folder of the node, which the level `restricted` forbids.
    level = "pod-security.kubernetes.io/enforce=privileged"
    kube.kubectl("label", "--overwrite", "namespace", kube.namespace, level)
    return Shop(kube, broker, shared, driver_image)


def test_executors_as_pods_mirror_the_shop(shop: Shop, spark: SparkSession) -> None:
    shop.send(shop.capture.records)
    shop.create()
    executors = eventually(shop.executors, within=120, what="executors")
    driver = shop.mirror.uid()
    for pod in executors:
        assert [owner["uid"] for owner in pod["metadata"]["ownerReferences"]] == [driver]
    shop.mirror.ready(within=180)
    eventually(
        lambda: (shop.mirror.status().get("checkpoint") or {}).get("caughtUp"), within=CAUGHT_UP_WITHIN
    )
    shop.check(spark)
    status = shop.mirror.status()
    assert status["tablesTotal"] == len(shop.capture.tables)
    assert status["totals"]["applied"] > 0
    shop.mirror.delete()
    eventually(lambda: not shop.executors() and not shop.mirror.drivers(), within=150, what="no pod left")


@pytest.mark.guarantee(
    "Network policies let only executors reach their driver, and only these reach an executor"
)
def test_pods_of_others_reach_neither_the_driver_nor_its_executors(
    shop: Shop, neighbour: Kube, standin_image: str, spark: SparkSession
) -> None:
    """Its metrics may be read by all. The cluster has to enforce network policies."""
    others = [Probe(kube, standin_image) for kube in (shop.mirror.kube, neighbour)]
    for probe in others:
        probe.create()
    require_enforcement(*others)
    shop.send(shop.capture.records)
    shop.create()
    shop.mirror.ready(within=180)
    eventually(
        lambda: (shop.mirror.status().get("checkpoint") or {}).get("caughtUp"), within=CAUGHT_UP_WITHIN
    )
    shop.check(spark)
    [driver], executors = shop.mirror.drivers(), shop.executors()
    ports = {
        name_of(pod): Probe(shop.mirror.kube, "", name_of(pod)).listened() for pod in (driver, *executors)
    }
    assert {7078, 7079, 9404} <= ports[name_of(driver)]
    for probe in others:
        reached = {
            (name_of(pod), port)
            for pod in (driver, *executors)
            for port in ports[name_of(pod)]
            if probe.reaches(pod, port)
        }
        assert reached == {(name_of(driver), 9404)}


def name_of(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def test_a_driver_killed_in_mid_batch_ends_equal(shop: Shop, spark: SparkSession) -> None:
    records = shop.capture.records
    shop.create(source={"kafka": {"maxRecordsPerBatch": 150}})
    for third in (records[: len(records) // 3], records[len(records) // 3 : 2 * len(records) // 3]):
        shop.send(third)
        eventually(
            lambda: (shop.mirror.status().get("checkpoint") or {}).get("lagRecords"), within=180, every=0.5
        )
        pod = f"{shop.mirror.name}-driver-0"
        shop.mirror.kube.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
    shop.send(records[2 * len(records) // 3 :])
    shop.caught_up()
    shop.check(spark)


def test_an_executor_killed_in_mid_batch_ends_equal(shop: Shop, spark: SparkSession) -> None:
    records = shop.capture.records
    half = len(records) // 2
    shop.create(source={"kafka": {"maxRecordsPerBatch": 150}})
    driver: str | None = None
    lost: set[str] = set()
    for part in (records[:half], records[half:]):
        shop.send(part)
        eventually(
            lambda: (shop.mirror.status().get("checkpoint") or {}).get("lagRecords"), within=180, every=0.5
        )
        driver = driver or shop.mirror.uid()
        for pod in eventually(shop.executors, within=120, what="executors"):
            lost.add(pod["metadata"]["uid"])
            name = pod["metadata"]["name"]
            shop.mirror.kube.kubectl("delete", "pod", name, "--force", "--grace-period=0")
    shop.caught_up()
    assert len(lost) >= 2
    assert shop.mirror.uid() == driver, "the driver went on"
    shop.check(spark)


@pytest.mark.guarantee("A container that is restarted in place finds no executors of the previous one")
def test_a_container_restarted_in_place_has_new_executors(shop: Shop, spark: SparkSession) -> None:
    records = shop.capture.records
    shop.send(records[: len(records) // 2])
    shop.create()
    shop.mirror.ready(within=180)
    before = {pod["metadata"]["uid"] for pod in eventually(shop.executors, within=120)}
    driver = shop.mirror.uid()
    shop.mirror.kube.kubectl(
        "exec", f"{shop.mirror.name}-driver-0", "--", "pkill", "-KILL", "-f", "lakemirror.pod"
    )
    shop.send(records[len(records) // 2 :])
    shop.caught_up()
    assert shop.mirror.uid() == driver, "the same pod"
    assert not before & {pod["metadata"]["uid"] for pod in shop.executors()}, "the old executors are gone"
    shop.check(spark)


@pytest.mark.soak  # six minutes, of which CI has few; conformance/test_kafka has the same without a cluster
def test_a_resync_brings_back_what_a_table_lost(shop: Shop, spark: SparkSession) -> None:
    """Reads the source again for one table, while the driver goes on with the others."""
    records = shop.capture.records
    shop.send(records[: len(records) // 2])
    shop.create()
    shop.mirror.ready(within=180)
    shop.send(records[len(records) // 2 :])
    shop.caught_up()
    schema, name = shop.capture.tables[0].split(".")
    lost = shop.lake.path(shop.capture.db, schema, name)
    DeltaTable.forPath(spark, lost).delete()
    assert wrong(shop.capture.differences(spark, shop.lake))
    source = f"{shop.capture.db}.{schema}.{name}"
    shop.mirror.edit(tables=[{"source": source, "resyncToken": "again"}])
    eventually(
        lambda: (shop.mirror.status().get("handled") or {}).get("resync") == {source: "again"},
        within=CAUGHT_UP_WITHIN,
        every=2,
        what="the table read again",
    )
    shop.check(spark)
    shop.mirror.ready(within=60)


@pytest.mark.soak  # five minutes, of which CI has few; test_stop_requests has the same without a cluster
def test_a_stopped_driver_ends_cleanly_within_its_grace_period(shop: Shop, spark: SparkSession) -> None:
    shop.send(shop.capture.records)
    shop.create(source={"kafka": {"maxRecordsPerBatch": 150}})
    eventually(
        lambda: (shop.mirror.status().get("checkpoint") or {}).get("lagRecords"), within=180, every=0.5
    )
    (pod,) = shop.mirror.drivers()
    grace = pod["spec"]["terminationGracePeriodSeconds"]
    began = time.monotonic()
    shop.mirror.edit(suspend=True)
    eventually(
        lambda: not shop.mirror.drivers() and not shop.executors(), within=grace + 30, what="all pods gone"
    )
    assert time.monotonic() - began < grace, "it was not killed"
    shop.mirror.edit(suspend=False)
    shop.caught_up()
    shop.check(spark)


def test_a_local_run_once_completes(shop: Shop, spark: SparkSession) -> None:
    shop.send(shop.capture.records)
    shop.create(trigger={"interval": None, "availableNow": True}, spark={"executors": {"min": 0, "max": 0}})
    shop.mirror.wait("Ready", reason="Completed", within=300)
    assert shop.mirror.status()["phase"] == "Completed"
    assert shop.executors() == []
    shop.check(spark)
