"""Builds Kubernetes objects from a spec, with the templates in ``sparkapp_templates``. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lakemirror.api import API_VERSION, KIND, PipelineSpec, duration_seconds
from lakemirror.api.documents import dump_document
from lakemirror.controller import authentication, names, podtemplate, sparkconf
from lakemirror.controller.references import references
from lakemirror.controller.remembered import last
from lakemirror.controller.values import Kind, Object, Pod

GRACE_SECONDS = 120
"""How long a driver may take to finish its batch after it is told to stop."""
_AFTER_GRACE_SECONDS = 30
"""What remains of the pod's period once the driver gives up its batch, but at most a quarter of it."""
TMP_SIZE = "50Gi"
"""How much a pod may write to /tmp before the kubelet evicts it. Spark spills to it in the driver."""
SECRETS = "/etc/lakemirror-secrets"
"""Where Secrets are mounted, each in a folder with its name; see ``pod.settings``."""
_KUBERNETES_GRACE_SECONDS = 30
"""The period of a pod that names none."""
SPARK_VERSION = "4.2.0"
APPLICATION_FILE = "local:///opt/lakemirror/lib/python3.11/site-packages/lakemirror/pod/__main__.py"
"""``lakemirror.pod`` in the driver's image, for ``spark-submit``, which takes files but no modules."""


@dataclass(frozen=True)
class Application:
    """The input from which one pipeline's objects are built.

    ``kept``: further entries of the config ConfigMap, for pods that still run another revision. ``held``: no
    driver may run. ``uid``: the pipeline's, which makes it the owner of the objects; without it, they have no
    owner. ``moved``: what the config keeps about a rollout, see ``values.Moved``.
    """

    namespace: str
    name: str
    spec: PipelineSpec
    revision: str
    image: str
    uid: str | None = None
    held: bool = False
    kept: Mapping[str, str] = field(default_factory=dict)
    moved: str = ""

    @property
    def pipeline(self) -> tuple[str, str]:
        return self.namespace, self.name


def kind_of(spec: PipelineSpec) -> Kind:
    """Return the kind of workload that creates the driver's pods for this spec."""
    if spec.spark.backend != "native":
        return "SparkApplication"
    if spec.trigger.available_now is None:
        return "StatefulSet"
    return "Job" if spec.trigger.schedule is None else "CronJob"


@last
def foundations(app: Application) -> tuple[Object, ...]:
    """Build what a driver needs before it starts.

    This is its account, rights and configuration, who may connect to it and, with the native back end, a
    Service. With executors, it is also a Secret, without its data: see ``authentication.new_data``. The
    config names the Secret, and so comes after it.
    """
    values = _values(app)
    data = {"data": config_data(app)}
    found = [*_rendered("common/access", values), *_rendered("common/network", values)]
    if values["authenticated"]:
        found += _rendered("common/authentication", values)
    found += _rendered("common/config", values | data)
    if app.spec.spark.backend == "native":
        found += _rendered("native/service", values)
    return tuple(_owned(app, document) for document in found)


@last
def workload(app: Application) -> Object:
    """Build the workload that creates the driver's pods."""
    kind, backend = kind_of(app.spec), app.spec.spark.backend
    values = _values(app)
    pod = driver_pod(app)
    if backend == "native":
        template = f"native/{kind.lower()}"
        if kind != "StatefulSet":
            pod["spec"]["restartPolicy"] = "Never"
        values |= {"pod": pod}
    else:
        template = f"{backend}/sparkapplication"
        values |= {
            "pod": _renamed(_without_command(pod), "driver"),
            "executor": _renamed(executor_pod(app), "executor"),
            "conf": sparkconf.submitted(app.spec, app.image, names.driver(app.name)),
            "reset_after_millis": int(duration_seconds(app.spec.restart.reset_after) * 1000),
        }
    return _owned(app, _rendered(template, values)[0])


def cleanup(app: Application) -> Object:
    """Build the Job that deletes the pipeline's data according to its deletion policy."""
    values = _values(app) | {"job": names.cleanup(app.name), "backoff_limit": 3, "component": "cleanup"}
    pod = driver_pod(app, task="cleanup")
    pod["metadata"]["labels"] = names.pod_labels(app.name, "cleanup", app.uid)
    pod["spec"]["restartPolicy"] = "Never"
    labels = names.labels(app.name, "cleanup")
    return _owned(app, _rendered("common/cleanup", values | {"pod": pod, "labels": labels})[0])


def driver_pod(app: Application, task: str = "") -> dict[str, Any]:
    """Build the driver's pod template."""
    values = _values(app)
    if task:  # it has no executors, and ends on its own
        values |= {"task": task, "watched": [], "authenticated": False, "config_items": _config_items(app)}
    pod = _rendered("common/driver", values)[0]
    return _with_grace(podtemplate.laid_over(pod, app.spec.spark, "driver"))


def _with_grace(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod with a driver that knows how long it may take to stop, whoever set the pod's period."""
    period = pod["spec"].get("terminationGracePeriodSeconds", _KUBERNETES_GRACE_SECONDS)
    if not isinstance(period, int):
        return pod  # the API server refuses it
    text = str(period - min(_AFTER_GRACE_SECONDS, period // 4))
    containers = [
        {**container, "env": [_set(each, text) for each in container["env"]]}
        if container["name"] == "driver" and isinstance(container.get("env"), list)
        else container
        for container in pod["spec"]["containers"]
    ]
    return {**pod, "spec": {**pod["spec"], "containers": containers}}


def _set(variable: Any, grace: str) -> Any:
    named = isinstance(variable, dict) and variable.get("name") == "LAKEMIRROR_GRACE_SECONDS"
    return {"name": "LAKEMIRROR_GRACE_SECONDS", "value": grace} if named else variable


def executor_pod(app: Application) -> dict[str, Any]:
    """Build the executors' pod template."""
    pod = _rendered("common/executor", _values(app))[0]
    return podtemplate.laid_over(pod, app.spec.spark, "executor")


def executor_trial(app: Application, driver: Pod) -> Object:
    """Build an executor's pod about as Spark will create it, for a dry run."""
    pod = executor_pod(app)
    memory, cpu = sparkconf.executor_memory(app.spec.spark), sparkconf.executor_cpu(app.spec.spark)
    containers = [
        {
            **container,
            "image": container.get("image") or app.image,
            "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}},
        }
        if container["name"] == "executor"
        else container
        for container in pod["spec"]["containers"]
    ]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": driver.name, "uid": driver.uid, "controller": True}
    metadata = {
        **pod["metadata"],
        "namespace": app.namespace,
        "generateName": f"{app.name}-exec-",
        "ownerReferences": [owner],
    }
    spec = {**pod["spec"], "restartPolicy": "Never", "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def config_data(app: Application) -> dict[str, str]:
    """Build the data of the config ConfigMap: what the driver reads, keyed by revision, and ``kept``."""
    metadata = {"name": app.name, "namespace": app.namespace}
    spec = app.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    own = {f"{app.revision}.yaml": dump_document(manifest)}
    if app.spec.spark.backend == "native":
        conf = sparkconf.native(app.name, app.namespace, app.spec.spark, app.image)
        # For pods without the Secret: those without executors, and those of earlier versions.
        own[f"{app.revision}-spark.json"] = json.dumps(conf, indent=2, sort_keys=True)
        if app.spec.spark.executors.max > 0:
            conf = sparkconf.authenticated(conf)
            own[f"{app.revision}-authenticated.json"] = json.dumps(conf, indent=2, sort_keys=True)
        own[f"{app.revision}-executor.yaml"] = dump_document(executor_pod(replace(app, kept={})))
    return {**app.kept, **own}


def applied_hash(document: Object) -> str:
    """Hash an object to be applied. The annotation that holds the hash is not included."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _owned(app: Application, document: Object) -> Object:
    metadata = {**document["metadata"], "namespace": app.namespace}
    if app.uid is not None:
        owner = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": app.name,
            "uid": app.uid,
            "controller": True,
        }
        metadata["ownerReferences"] = [owner]
    owned = {**document, "metadata": metadata}
    annotations = {**metadata.get("annotations", {}), names.APPLIED: applied_hash(owned)}
    return {**owned, "metadata": {**metadata, "annotations": annotations}}


def _values(app: Application) -> dict[str, Any]:
    """Return the values that the templates may use."""
    spec, spark = app.spec, app.spec.spark
    with_executors = spark.executors.max > 0
    return {
        "pipeline": app.name,
        "namespace": app.namespace,
        "labels": names.labels(app.name, "driver"),
        "pod_labels": names.pod_labels(app.name, "driver", app.uid),
        "selector": names.selector(app.name, "driver", app.uid),
        "driver": names.driver(app.name),
        "config": names.config(app.name),
        "progress": names.progress(app.name),
        "job": names.run(app.name, app.revision),
        "revision": app.revision,
        "image": app.image,
        "held": app.held,
        "moved": app.moved,
        "config_items": _config_items(app, "authenticated" if with_executors else "spark"),
        "pull_secrets": [{"name": name} for name in spark.image_pull_secrets or []],
        "secrets": sorted(set(spec.secrets().values())),
        "executor_secrets": _executor_secrets(spec),
        "secrets_folder": SECRETS,
        "tmp_size": TMP_SIZE,
        "watched": references(spark.pod_template, spark.driver.pod_template, spark.executors.pod_template),
        "executors": names.executors(app.name),
        "executor_labels": names.executor_labels(app.name),
        "driver_ports": sparkconf.driver_ports(spark),
        "authenticated": with_executors,
        "authentication": names.authentication(app.name, app.uid),
        "authentication_folder": authentication.FOLDER,
        "authentication_key": authentication.KEY,
        "authentication_variable": authentication.VARIABLE,
        "authentication_encoded_key": authentication.ENCODED_KEY,
        "distributed": spark.executors.max > 0 or spark.backend != "native",
        "grace_seconds": GRACE_SECONDS,
        "driver_cpu": sparkconf.driver_cpu(spark),
        "driver_memory": sparkconf.driver_memory(spark),
        "backoff_limit": spec.restart.backoff_limit,
        "schedule": spec.trigger.schedule,
        "spark": spark,
        "spark_version": SPARK_VERSION,
        "application_file": APPLICATION_FILE,
        "task": "",
    }


def _executor_secrets(spec: PipelineSpec) -> list[str]:
    """Return the Secrets that executors need: those whose files something names that executors use.

    What they need of the others comes with their tasks. An address of a database may name a certificate.
    """
    verify, target, spark = spec.verify, spec.target.jdbc, spec.spark
    addresses = [verify.jdbc.url if verify and verify.jdbc else "", target.url if target else ""]
    templates = [spark.pod_template, spark.executors.pod_template]
    text = json.dumps([addresses, spark.conf, templates])
    return [
        name
        for name in sorted(set(spec.secrets().values()))
        if re.search(rf"{re.escape(f'{SECRETS}/{name}')}(?![\w.-])", unquote(text))
    ]


def _config_items(app: Application, settings: Literal["spark", "authenticated"] = "spark") -> list[Object]:
    """Return which keys of the config ConfigMap a pod mounts, and as which files."""
    items = {f"{app.revision}.yaml": "pipeline.yaml"}
    if app.spec.spark.backend == "native":
        items |= {
            f"{app.revision}-{settings}.json": "spark.json",
            f"{app.revision}-executor.yaml": "executor.yaml",
        }
    return [{"key": key, "path": path} for key, path in items.items()]


def _without_command(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod without the driver container's arguments, because Spark starts it with its own."""
    containers = [
        {key: value for key, value in container.items() if key != "args"}
        if container["name"] == "driver"
        else container
        for container in pod["spec"]["containers"]
    ]
    return {**pod, "spec": {**pod["spec"], "containers": containers}}


def _renamed(pod: dict[str, Any], container: str) -> dict[str, Any]:
    """Return the pod with our container renamed to what Spark and the other operators call it."""
    containers = [
        {**c, "name": f"spark-kubernetes-{container}"} if c["name"] == container else c
        for c in pod["spec"]["containers"]
    ]
    return {**pod, "spec": {**pod["spec"], "containers": containers}}


def _rendered(template: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    text = _environment().get_template(f"{template}.yaml.j2").render(values)
    documents: Iterable[dict[str, Any]] = yaml.load_all(text, _YAML)
    return list(documents)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(template_folder()), undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.policies["json.dumps_function"] = _as_yaml  # what ``tojson`` uses
    return environment


def _as_yaml(value: Any, **options: Any) -> str:
    """Return JSON that YAML reads as the same value.

    JSON writes a character beyond the Basic Multilingual Plane as two escapes, which YAML does not combine.
    Unescaped, YAML refuses some characters and takes others for line breaks. So each character that is not
    ASCII becomes one escape of YAML's own.
    """
    text = json.dumps(value, **{**options, "ensure_ascii": False})
    return _NOT_ASCII.sub(lambda found: f"\\U{ord(found[0]):08x}", text)


_NOT_ASCII = re.compile(r"[^ -~]")


def template_folder() -> Path:
    """Return the folder of the templates: inside the installed package, or next to the sources."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "sparkapp_templates"
    return installed if installed.is_dir() else package.parents[1] / "sparkapp_templates"


_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
