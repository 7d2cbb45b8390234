"""The pages of the chart's values and of environment variables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from lakemirror.cli.main import main
from website.tables import table

ROOT = Path(__file__).parents[1]
OPERATOR = ROOT / "operator" / "lakemirror"
VALUES = ROOT / "charts" / "lakemirror" / "values.yaml"


def chart_page() -> str:
    """Return the page of the chart's values, with their defaults and what their comments say."""
    rows = [
        (f"`{path}`", f"`{default}`" if default else "", said)
        for path, default, said in values()
        if default or said
    ]
    return f"""# Values of the chart

Every value of the [Helm chart](../../charts/lakemirror/values.yaml). The chart refuses values that are not
listed here.

{table(("value", "default", "meaning"), rows)}
"""


def values() -> Iterator[tuple[str, str, str]]:
    """Yield the path, the default and the comments of each value; a group of values has no default."""
    text = VALUES.read_text()
    yield from _values(yaml.compose(text), text, "")


def _values(node: Any, text: str, prefix: str) -> Iterator[tuple[str, str, str]]:
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        group = isinstance(value, yaml.MappingNode) and not value.flow_style
        default = "" if group else text[value.start_mark.index : value.end_mark.index]
        yield path, default, " ".join(_comments(text.splitlines(), key.start_mark.line))
        if group:
            yield from _values(value, text, f"{path}.")


def _comments(lines: list[str], at: int) -> list[str]:
    """Return the comment that directly precedes a line, and the one at its end."""
    first = at
    while lines[first - 1].lstrip().startswith("#"):
        first -= 1
    above = [line.strip(" #") for line in lines[first:at]]
    return above + re.findall(r"\s#\s*(.+)", lines[at])


ENVIRONMENT: dict[str, str] = {
    "HADOOP_CONF_DIR": "Hadoop's configuration, which may name the file system of paths without a scheme",
    "JAVA_HOME": "The Java that Spark is started with. Default: the one on the PATH",
    "KUBECONFIG": "How the operator reaches the API server outside a cluster. Default: `~/.kube/config`",
    "KUBERNETES_SERVICE_HOST": "The address of the API server. Kubernetes sets it",
    "KUBERNETES_SERVICE_PORT": "The port of the API server. Kubernetes sets it",
    "LAKEMIRROR_DRIVER_IMAGE": "The image of drivers without `spec.spark.image` (`--driver-image`)",
    "LAKEMIRROR_GRACE_SECONDS": "How many seconds a driver that is told to stop has. The operator sets it",
    "LAKEMIRROR_JARS": "The folder of the jars that Spark needs. Default: one in the user's cache",
    "LAKEMIRROR_LOG_LEVEL": "`debug`, `info`, `warning` or `error`. `debug` shows where errors arise",
    "LAKEMIRROR_METRICS_PORT": "The port of a driver's metrics. Default: none; the operator sets 9404",
    "LAKEMIRROR_OBJECT_STORES": "The object stores whose jars are added, like `s3` or `s3,gcs`",
    "LAKEMIRROR_PROGRESS_CONFIGMAP": "The ConfigMap that a driver reports in. The operator sets it",
    "LAKEMIRROR_REVISION": "The revision of the spec that a driver runs. The operator sets it",
    "LAKEMIRROR_ROLLOUT_MAX_CONCURRENT": "How many get an image at a time (`--rollout-max-concurrent`)",
    "LAKEMIRROR_ROLLOUT_TIMEOUT": "How long each may take to become Ready on it (`--rollout-timeout`)",
    "POD_IP": "The address of the pod. The operator sets it",
    "POD_NAME": "The name of the pod, by which operators that share a Lease tell each other apart",
    "POD_NAMESPACE": "The namespace of the pod, which also has the operator's Lease",
    "POD_UID": "The uid of the pod, for the driver's report. The operator sets it",
    "PYSPARK_GATEWAY_PORT": "Set by `spark-submit`, which then brings the master, memory and jars itself",
    "SPARK_HOME": "The installation of Spark. Default: that of the package pyspark",
    "XDG_CACHE_HOME": "The user's cache, in which the jars are kept. Default: `~/.cache`",
}
_READERS = {"driver": "driver", "pod": "driver", "controller": "operator"}


def environment_page() -> str:
    """Return the page of the environment variables, with who reads each of them."""
    rows = [
        (f"`{name}`", ", ".join(sorted(by)), f"{ENVIRONMENT[name]}.")
        for name, by in sorted(variables().items())
    ]
    return f"""# Environment variables

Every environment variable that Lakemirror reads itself. `lakemirror run`, `verify`, `reload` and other
commands that need Spark contain the driver. In a cluster, set those of a driver in `spec.spark.podTemplate`,
and those of the operator in the chart's value `env`. Clients of [object stores](../object-stores.md) read
further variables.

{table(("variable", "read by", "meaning"), rows)}
"""


def variables() -> dict[str, set[str]]:
    """Return the environment variables that the code and the options of commands name, and who reads each."""
    found: dict[str, set[str]] = {}
    for path in OPERATOR.rglob("*.py"):
        package = path.relative_to(OPERATOR).parts[0]
        for name in _read_in(ast.parse(path.read_text())):
            found.setdefault(name, set()).add(_READERS.get(package, path.stem))
    for command in main.commands.values():
        for option in command.params:
            if isinstance(option.envvar, str):
                found.setdefault(option.envvar, set()).add(str(command.name))
    return found


def _read_in(module: ast.Module) -> Iterator[str]:
    """Yield the variables that a module reads by a literal name, or by the name of a constant."""
    constants = {
        ast.unparse(node.targets[0]): node.value for node in module.body if isinstance(node, ast.Assign)
    }
    for node in ast.walk(module):
        named: ast.expr | None = None
        if isinstance(node, ast.Subscript) and _is_environment(node.value):
            named = node.slice
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "environment.get"):
            named = node.args[0]
        elif isinstance(node, ast.Compare) and _is_environment(node.comparators[0]):
            named = node.left
        if isinstance(named, ast.Name):
            named = constants.get(named.id)
        if isinstance(named, ast.Constant):
            yield str(named.value)


def _is_environment(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environment")
