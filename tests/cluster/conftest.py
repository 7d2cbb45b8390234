"""A cluster with the operator in it, and a namespace for each test.

The cluster is the one that ``KUBECONFIG`` names, else one made with kind, of the version of Kubernetes whose
node image ``LAKEMIRROR_KIND_IMAGE`` names. On a cluster that is given,
``LAKEMIRROR_IMAGE_COMMAND`` has to say how an image gets into it; scripts/images describes it.
``LAKEMIRROR_ON_NODE`` (as ``sh -c`` where the cluster runs on this machine) lets tests stop the API server.
``LAKEMIRROR_BASE_IMAGE`` names the base of the images, as for scripts/images.
Where nothing restarts one that was killed, as the kubelet does with kind, ``LAKEMIRROR_REVIVE_API_SERVER`` is
the command that does.
For the tests with Spark, ``LAKEMIRROR_HOST_ADDRESS`` tells where pods reach this machine, and
``LAKEMIRROR_SHARED_FOLDER`` names a folder that the node has at the same path.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.kube import Kube, eventually
from tests.cluster.mirror import Mirror
from tests.cluster.operator import OPERATORS, Operator

ROOT = Path(__file__).parents[2]
KIND_CLUSTER = "lakemirror-tests"
KIND = {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4"}
SHARED = Path(os.environ.get("LAKEMIRROR_SHARED_FOLDER", "/tmp/lakemirror-cluster-tests"))
MOUNT = {"hostPath": str(SHARED), "containerPath": str(SHARED)}
TAG = "cluster-tests"
Build = Callable[..., str]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """The cluster, seen from its namespace ``default``."""
    for tool in ("kubectl", "helm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not on the PATH")
    given = os.environ.get("KUBECONFIG")
    if given:
        yield Kube(Path(given))
        return
    if shutil.which("kind") is None or not succeeds("docker", "info"):
        pytest.skip("no cluster: KUBECONFIG is not set, and kind or a running Docker is missing")
    folder = tmp_path_factory.mktemp("kind")
    kubeconfig, config = folder / "kubeconfig", folder / "kind.json"
    SHARED.mkdir(parents=True, exist_ok=True)
    config.write_text(json.dumps(KIND | {"nodes": [{"role": "control-plane", "extraMounts": [MOUNT]}]}))
    create = ["kind", "create", "cluster", "--name", KIND_CLUSTER, "--config", str(config), "--wait", "180s"]
    image = os.environ.get("LAKEMIRROR_KIND_IMAGE")
    run(*create, "--kubeconfig", str(kubeconfig), *(["--image", image] if image else []))
    os.environ.setdefault("LAKEMIRROR_ON_NODE", f"docker exec {KIND_CLUSTER}-control-plane sh -c")
    try:
        yield Kube(kubeconfig)
    finally:
        run("kind", "delete", "cluster", "--name", KIND_CLUSTER)


@pytest.fixture(scope="session")
def build(cluster: Kube) -> Build:
    """Builds an image and brings it into the cluster: ``build(name, context, *options of docker build)``."""
    command = shlex.split(os.environ.get("LAKEMIRROR_IMAGE_COMMAND", ""))
    in_kind = "KUBECONFIG" not in os.environ
    if not (command or in_kind):
        pytest.skip("a cluster is given, but not how images get into it: set LAKEMIRROR_IMAGE_COMMAND")

    def build(name: str, context: Path, *options: str) -> str:
        tagged = f"{name}:{TAG}"
        if command:
            run(*command, tagged, str(context), *options)
        else:
            run("docker", "build", "-t", tagged, *options, str(context))
            run("kind", "load", "docker-image", tagged, "--name", KIND_CLUSTER)
        return tagged

    return build


@pytest.fixture(scope="session")
def standin_context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    context = tmp_path_factory.mktemp("standin")
    shutil.copytree(ROOT / "tests/cluster/standin", context, dirs_exist_ok=True)
    shutil.copy(ROOT / "operator/lakemirror/pod/mounts.py", context)
    return context


@pytest.fixture(scope="session")
def standin_image(build: Build, standin_context: Path) -> str:
    return build("lakemirror-standin", standin_context)


@pytest.fixture(scope="session")
def newer_image(build: Build, standin_context: Path) -> str:
    """The stand-in as another image."""
    return build("lakemirror-standin-newer", standin_context)


@pytest.fixture(scope="session")
def operator_image(build: Build) -> str:
    """The operator's image; ``LAKEMIRROR_OPERATOR_IMAGE`` names one that is in the cluster already."""
    given = os.environ.get("LAKEMIRROR_OPERATOR_IMAGE")
    return given or build("lakemirror-operator", ROOT, "--target", "operator", *base())


@pytest.fixture(scope="session")
def driver_image(build: Build) -> str:
    """The driver's image; ``LAKEMIRROR_DRIVER_IMAGE`` names one that is in the cluster already."""
    given = os.environ.get("LAKEMIRROR_DRIVER_IMAGE")
    return given or build("lakemirror-driver", ROOT, "--target", "driver", *base())


def base() -> list[str]:
    """The option that names another base image, where the cluster's machine cannot pull the Dockerfile's."""
    given = os.environ.get("LAKEMIRROR_BASE_IMAGE")
    return ["--build-arg", f"BASE={given}"] if given else []


@pytest.fixture(scope="session")
def host(cluster: Kube) -> str:
    """The address at which pods reach this machine."""
    given = os.environ.get("LAKEMIRROR_HOST_ADDRESS")
    if given:
        return given
    if "KUBECONFIG" in os.environ:
        pytest.skip(
            "a cluster is given, but not where its pods reach this machine: set LAKEMIRROR_HOST_ADDRESS"
        )
    gateways = "{{range .IPAM.Config}}{{.Gateway}} {{end}}"
    inspect = ["docker", "network", "inspect", "kind", "--format", gateways]
    found = subprocess.run(inspect, capture_output=True, text=True, check=True).stdout.split()
    return next(address for address in found if ":" not in address)


@pytest.fixture
def shared() -> Iterator[Path]:
    """An empty folder that this machine and the node have in common, and that everybody may write to."""
    folder = SHARED / uuid.uuid4().hex[:8]
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def installed(cluster: Kube, operator_image: str, standin_image: str) -> Iterator[Operator]:
    """The operator, installed with the chart; two replicas, so that one can take over."""
    operator = Operator(cluster.within(OPERATORS))
    try:
        operator.install(ROOT / "charts/lakemirror", operator_image, standin_image)
        yield operator
    finally:
        operator.uninstall()


@pytest.fixture
def operator(installed: Operator) -> Iterator[Operator]:
    """The operator, at work at the test's start; what a test does to it is undone at its end."""
    yield installed
    installed.scale(2)


@pytest.fixture
def kube(cluster: Kube, operator: Operator) -> Iterator[Kube]:
    """A namespace of the test's own, at Pod Security's level ``restricted``."""
    yield from namespace(cluster)


@pytest.fixture
def neighbour(cluster: Kube, operator: Operator) -> Iterator[Kube]:
    """Another namespace like that."""
    yield from namespace(cluster)


def namespace(cluster: Kube) -> Iterator[Kube]:
    name = f"mirror-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kube = cluster.within(name)
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    eventually(lambda: kube.get("serviceaccount", "default"), what="the namespace's service account")
    kube.apply(*behaviour_rights(name))
    yield kube
    kube.delete("namespace", name, "--wait=false")


@pytest.fixture
def mirror(kube: Kube) -> Mirror:
    """A pipeline called ``shop`` that is not there yet: ``create`` makes it."""
    return Mirror(kube, "shop")


def behaviour_rights(namespace: str) -> list[dict[str, object]]:
    """Lets the stand-ins of a namespace read what they shall do, and keep their journal."""
    metadata = {"name": "standin", "namespace": namespace}
    group = f"system:serviceaccounts:{namespace}"
    rbac = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]}]
    return [
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "standin"},
            "subjects": [{"kind": "Group", "apiGroup": rbac, "name": group}],
        },
    ]


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


def succeeds(*command: str) -> bool:
    return (
        shutil.which(command[0]) is not None and not subprocess.run(command, capture_output=True).returncode
    )
