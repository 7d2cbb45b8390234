"""A soak on a cluster: a bank that changes all the time, while driver, operator, API server, broker and
connector are killed or paused at random. The bank and Kafka are processes of this machine, the rest are pods.

    LAKEMIRROR_SOAK_MINUTES=30 scripts/cluster-test -m "cluster and soak" -k whatever_happened -s
"""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.kube import Kube, KubectlFailed, eventually
from tests.cluster.mirror import Mirror
from tests.cluster.operator import Operator
from tests.support import bank
from tests.support.connect import Connect, start_connect
from tests.support.databases import Server, start_postgres
from tests.support.kafka_broker import Broker, start_broker
from tests.support.live import Banking
from tests.support.memory import Sample, growth
from tests.support.soak import (
    CALM,
    GROWTH,
    HEAP,
    MINUTES,
    SEED,
    TABLES,
    VISITS,
    WARMING,
    WHOLE_HEAP,
    Kinds,
    Trouble,
    Visits,
    changing,
    require_conserved,
    require_equal,
)

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(MINUTES * 60 + 3600)]

ON_NODE = os.environ.get("LAKEMIRROR_ON_NODE")
REVIVE = os.environ.get("LAKEMIRROR_REVIVE_API_SERVER", "true")
NEEDS_SOMEONE = (
    "BackoffLimitExceeded",
    "InvalidSpec",
    "Refused",
    "SourceLost",
    "SourceRestarted",
    "TableFailed",
)
OPERATOR_GROWTH = 0.1
"""By what part the operator's memory may grow while it is left alone."""


class Deployed(Banking):
    """A bank whose pipeline is a resource of a cluster, with its lake in a folder of the node."""

    def __init__(
        self, kube: Kube, folder: Path, server: Server, broker: Broker, connect: Connect, image: str
    ) -> None:
        lake = str(folder / "pipeline")
        container = {"name": "driver", "volumeMounts": [{"name": "lake", "mountPath": lake}]}
        volume = {"name": "lake", "hostPath": {"path": lake, "type": "Directory"}}
        spark = {
            "image": image,
            "driver": {"memory": HEAP},
            "executors": {"max": 0},
            "conf": {
                "spark.kubernetes.driver.request.cores": "100m",
                "spark.sql.shuffle.partitions": "2",
                "spark.driver.extraJavaOptions": WHOLE_HEAP,
            },
            "podTemplate": {"spec": {"volumes": [volume], "containers": [container]}},
        }
        super().__init__(folder, server, broker, connect, spark, TABLES)
        self.mirroring.folder.chmod(0o777)
        self.pipeline = Mirror(kube, bank.DATABASE)
        self.pod = f"{bank.DATABASE}-driver-0"

    def create(self) -> None:
        """Apply the manifest."""
        self.pipeline.kube.kubectl("apply", "-f", str(self.mirroring.manifest))

    def require_driver(self) -> None:
        try:
            conditions = self.pipeline.status().get("conditions", [])
        except (KubectlFailed, subprocess.TimeoutExpired):  # the API server is away
            return
        reasons = {condition["reason"] for condition in conditions}
        assert not reasons.intersection(NEEDS_SOMEONE), f"{conditions}\n{self.said()}"

    def said(self) -> str:
        try:
            return self.pipeline.kube.kubectl("logs", self.pod, "--tail=40")
        except (KubectlFailed, subprocess.TimeoutExpired) as error:
            return str(error)


class OnCluster(Trouble):
    """Of what runs as pods, and of the API server."""

    mirror: Deployed

    def __init__(self, mirror: Deployed, operator: Operator, chance: random.Random) -> None:
        super().__init__(mirror, chance)
        self._operator = operator

    def kinds(self, *, spare: bool) -> Kinds:
        """What may happen. ``spare``: driver and operator, whose memory is looked at."""
        beside: Kinds = {
            "broker killed": (2, self.broker),
            "connector killed": (2, self.connector),
            "API server paused": (2, self._pause_api_server),
            "API server killed": (1, self._kill_api_server),
        }
        if spare:
            return beside
        return {
            **beside,
            "driver's pod killed": (3, self._driver),
            "driver's process killed": (2, self._driver_in_place),
            "acting operator killed": (3, self._acting_operator),
            "driver and operator killed": (1, self._both),
        }

    def _driver(self) -> None:
        kill = ("delete", "pod", self.mirror.pod, "--force", "--grace-period=0", "--ignore-not-found")
        self.mirror.pipeline.kube.kubectl(*kill)

    def _driver_in_place(self) -> None:
        try:
            kill = ("pkill", "-KILL", "-f", "lakemirror.pod")
            self.mirror.pipeline.kube.kubectl("exec", self.mirror.pod, "--", *kill)
        except KubectlFailed as error:  # it is just being started
            print(error, flush=True)

    def _acting_operator(self) -> None:
        if holder := self._operator.holder():
            self._operator.kill(holder)

    def _both(self) -> None:
        self._acting_operator()
        self._driver()

    def _pause_api_server(self) -> None:
        seconds = self.chance.uniform(5, 60)
        self._on_node(
            f"kill -STOP $(pidof kube-apiserver); sleep {seconds:.0f}; kill -CONT $(pidof kube-apiserver)"
        )

    def _kill_api_server(self) -> None:
        self._on_node(f"kill -KILL $(pidof kube-apiserver); {REVIVE}")

    def _on_node(self, command: str) -> None:
        subprocess.run([*shlex.split(ON_NODE or ""), command], check=True, timeout=300)
        eventually(self._answers, within=180, what="the API server back")

    def _answers(self) -> bool:
        try:
            return bool(self.mirror.pipeline.resource())
        except (KubectlFailed, subprocess.TimeoutExpired):
            return False


@pytest.fixture
def deployed(kube: Kube, host: str, shared: Path, driver_image: str, tmp_path: Path) -> Iterator[Deployed]:
    """A bank with its pipeline, which is not created yet."""
    if not ON_NODE:
        pytest.skip("LAKEMIRROR_ON_NODE does not say how to run a command on the node")
    # The lake is a folder of the node, which the level `restricted` forbids.
    level = "pod-security.kubernetes.io/enforce=privileged"
    kube.kubectl("label", "--overwrite", "namespace", kube.namespace, level)
    for name in ("kafka", "connect"):
        (tmp_path / name).mkdir()
    with start_postgres(tmp_path) as server, start_broker(tmp_path / "kafka", host) as broker:
        bank.create(server)
        server.sql(VISITS, bank.DATABASE)
        settings = {**bank.connector(server), "skipped.operations": "none"}
        with start_connect(tmp_path / "connect", broker, bank.DATABASE, settings) as connect:
            mirror = Deployed(kube, shared, server, broker, connect, driver_image)
            try:
                connect.until_running()
                yield mirror
            finally:
                mirror.end()


def test_a_mirror_on_a_cluster_equals_its_database_after_whatever_happened(
    deployed: Deployed, operator: Operator
) -> None:
    print(f"LAKEMIRROR_SOAK_MINUTES={MINUTES:g} LAKEMIRROR_SOAK_SEED={SEED}", flush=True)
    trouble = OnCluster(deployed, operator, random.Random(SEED))
    visits = Visits(deployed.server, random.Random(SEED))
    deployed.create()
    memory: dict[str, list[Sample]] = {"driver": [], "operator": []}
    with changing(deployed, visits):
        deployed.wait_for("the first rows", deployed.has_all)
        began = time.monotonic()
        trouble.until(began + MINUTES * 60 * (1 - CALM), trouble.kinds(spare=False))
        trouble.until(began + MINUTES * 60 * (1 - CALM * (1 - WARMING)), trouble.kinds(spare=True))
        calm = time.monotonic()
        while time.monotonic() < began + MINUTES * 60:
            memory["driver"].append((time.monotonic(), deployed.pipeline.kube.resident(deployed.pod)))
            memory["operator"].append((time.monotonic(), operator.memory(operator.holder())))
            time.sleep(10)
        ended = time.monotonic()
    equal = require_equal(deployed)
    deployed.pipeline.ready(within=180)
    status = deployed.pipeline.status()
    deployed.pipeline.edit(suspend=True)
    eventually(lambda: not deployed.pipeline.drivers(), within=180, what="the driver stopped")
    figures = {
        "minutes": round((ended - began) / 60, 1),
        "seed": SEED,
        "trouble": dict(sorted(trouble.done.items())),
        "load": dict(sorted(visits.done.items())),
        "audit": require_conserved(deployed),
        "verify": equal,
        "driver's restarts in the status": status["driver"]["restarts"],
        "minutes looked at": round((ended - calm) / 60, 1),
        "resident MiB": {name: [round(s[0][1]), round(s[-1][1])] for name, s in memory.items()},
    }
    print(json.dumps(figures, indent=2), flush=True)
    assert growth(memory["driver"]) <= GROWTH, figures
    assert growth(memory["operator"]) <= OPERATOR_GROWTH, figures
