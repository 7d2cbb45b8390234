"""The chart renders what it promises, for all shapes of its values, and refuses values that are wrong."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakemirror.controller import names
from tests.support.crds import kind_of, needs_crds, published, wrong_in

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "lakemirror"
CRD = "cdcpipelines.lakemirror.io"
HELM = shutil.which("helm")
KUBERNETES = "--kube-version=1.34.0"
"""What the chart is rendered for, where no cluster is asked."""
needs_helm = pytest.mark.skipif(HELM is None, reason="helm is not on the PATH")

EVERYTHING = (
    "backends.kubeflow=true",
    "backends.apache=true",
    "podDisruptionBudget.enabled=true",
    "networkPolicy.enabled=true",
    "podMonitor.enabled=true",
    "prometheusRule.enabled=true",
    "dashboards.enabled=true",
    "replicas=2",
)
Object = dict[str, Any]
RELABELING: Object = {
    "enabled": True,
    "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
    "metricRelabelings": [{"sourceLabels": ["__name__"], "regex": "lakemirror_batch_.*", "action": "drop"}],
}


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HELM), *arguments], capture_output=True, text=True, check=False)


def render(*settings: str, release: str = "lakemirror", json_settings: tuple[str, ...] = ()) -> list[Object]:
    """The objects of the chart with these values."""
    options = [o for s in settings for o in ("--set", s)] + [
        o for s in json_settings for o in ("--set-json", s)
    ]
    done = helm("template", release, str(CHART), "--namespace", "operators", KUBERNETES, *options)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [o for o in objects if o["kind"] == kind]


def only(objects: list[Object], kind: str) -> Object:
    (found,) = (
        o for o in of_kind(objects, kind) if "helm.sh/hook" not in o["metadata"].get("annotations", {})
    )
    return found


def pod_specs(objects: list[Object]) -> Iterator[Object]:
    for o in objects:
        if o["kind"] == "Pod":
            yield o["spec"]
        elif o["kind"] == "Deployment":
            yield o["spec"]["template"]["spec"]


def test_the_chart_has_the_crd_of_the_models() -> None:
    ours, theirs = CHART / "files" / f"{CRD}.yaml", ROOT / "crds" / f"{CRD}.yaml"
    assert ours.read_text() == theirs.read_text(), f"stale: cp crds/{CRD}.yaml {ours.relative_to(ROOT)}"


def test_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    package = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert package is not None
    assert {chart["version"], chart["appVersion"]} == {package[1]}


def test_every_value_has_a_schema() -> None:
    def holes(values: Any, schema: Object, path: str) -> Iterator[str]:
        if "properties" in schema:
            assert schema["additionalProperties"] is False, path
            for name, value in values.items():
                assert name in schema["properties"], f"{path}.{name}"
                yield from holes(value, schema["properties"][name], f"{path}.{name}")

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert list(holes(values, schema, "values")) == []
    assert set(schema["properties"]) - set(values) == {"global"}


@needs_helm
@needs_crds
def test_objects_for_monitoring_are_what_the_prometheus_operator_publishes() -> None:
    made = render(*EVERYTHING, json_settings=(f"podMonitor={json.dumps(RELABELING)}",))
    made = [o for o in made if o["apiVersion"].startswith("monitoring.coreos.com/")]
    assert {o["kind"] for o in made} == {"PodMonitor", "PrometheusRule"}
    for o in made:
        assert wrong_in(o, published()[kind_of(o)]) == [], o["metadata"]["name"]


@needs_helm
def test_series_can_be_relabeled_and_dropped() -> None:
    monitors = of_kind(render(json_settings=(f"podMonitor={json.dumps(RELABELING)}",)), "PodMonitor")
    endpoints = [endpoint for monitor in monitors for endpoint in monitor["spec"]["podMetricsEndpoints"]]
    assert len(endpoints) == 2
    for endpoint in endpoints:
        assert endpoint["relabelings"] == RELABELING["relabelings"]
        assert endpoint["metricRelabelings"] == RELABELING["metricRelabelings"]


@needs_helm
def test_scrapes_have_limits() -> None:
    def limits(*settings: str) -> list[Object]:
        monitors = of_kind(render("podMonitor.enabled=true", *settings), "PodMonitor")
        return [{k: v for k, v in each["spec"].items() if k.endswith("Limit")} for each in monitors]

    usual = {
        "sampleLimit": 250_000,
        "labelLimit": 64,
        "labelNameLengthLimit": 256,
        "labelValueLengthLimit": 4096,
    }
    assert limits() == [usual, usual]
    changed = limits("podMonitor.sampleLimit=2000000", "podMonitor.labelLimit=0")
    assert changed == [usual | {"sampleLimit": 2_000_000, "labelLimit": 0}] * 2


@needs_helm
def test_a_digest_counts_in_place_of_the_tag() -> None:
    digests = {name: f"sha256:{letter * 64}" for name, letter in (("image", "a"), ("driverImage", "b"))}
    settings = [f"{name}.digest={digest}" for name, digest in digests.items()]
    [deployment] = of_kind(render("image.tag=v1", "driverImage.tag=v1", *settings), "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    [driver] = [each["value"] for each in container["env"] if each["name"] == "LAKEMIRROR_DRIVER_IMAGE"]
    assert container["image"] == f"lakemirror-operator@{digests['image']}"
    assert driver == f"lakemirror-driver@{digests['driverImage']}"


@needs_helm
@pytest.mark.parametrize("settings", [(), EVERYTHING, ("namespaces={a,b}",)], ids=["plain", "all", "roles"])
def test_lint(settings: tuple[str, ...]) -> None:
    done = helm("lint", "--strict", KUBERNETES, str(CHART), *(o for s in settings for o in ("--set", s)))
    assert done.returncode == 0, done.stdout + done.stderr


@needs_helm
@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("replica=2", "replica"),
        ("replicas=-1", "replicas"),
        ("namespaces={Not_A_Name}", "namespaces"),
        ("image.tag=a b", "tag"),
        ("driverImage.digest=sha256:1", "digest"),
        ("log.level=loud", "level"),
        ("crds.keep=maybe", "keep"),
        ("podMonitor.interval=often", "interval"),
        ("podMonitor.metricRelabelings=none", "metricRelabelings"),
        ("podMonitor.sampleLimit=many", "sampleLimit"),
        ("podMonitor.labelLimit=-1", "labelLimit"),
        ("networkPolicy.apiServer.ports={0}", "ports"),
        ("backends.flink=true", "flink"),
        ("admissionPolicy.enabled=maybe", "enabled"),
        ("driverRollout.maxConcurrent=0", "maxConcurrent"),
        ("driverRollout.timeout=soon", "timeout"),
        ("uninstallCheck=maybe", "uninstallCheck"),
    ],
)
def test_wrong_values_are_refused_by_name(setting: str, named: str) -> None:
    done = helm("template", "x", str(CHART), KUBERNETES, "--set", setting)
    assert done.returncode != 0
    assert named in done.stderr


@needs_helm
def test_the_crd_is_kept_unless_told_otherwise() -> None:
    kept = only(render(), "CustomResourceDefinition")
    assert kept["metadata"]["name"] == CRD
    assert kept["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    dropped = only(render("crds.keep=false"), "CustomResourceDefinition")
    assert "annotations" not in dropped["metadata"]
    assert kept["spec"] == yaml.safe_load((ROOT / "crds" / f"{CRD}.yaml").read_text())["spec"]
    assert of_kind(render("crds.enabled=false"), "CustomResourceDefinition") == []


@needs_helm
def test_listed_namespaces_need_no_cluster_wide_right() -> None:
    objects = render("namespaces={one,two}", "rbac.aggregate=true")
    assert of_kind(objects, "ClusterRole") == of_kind(objects, "ClusterRoleBinding") == []
    roles = {
        (o["metadata"]["namespace"], o["metadata"]["name"]): o["rules"] for o in of_kind(objects, "Role")
    }
    assert set(roles) == {("one", "lakemirror"), ("two", "lakemirror"), ("operators", "lakemirror-lease")}
    assert roles["one", "lakemirror"] == roles["two", "lakemirror"]
    bound = {(o["metadata"]["namespace"], o["roleRef"]["name"]) for o in of_kind(objects, "RoleBinding")}
    assert bound == set(roles)
    (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["args"][-2:] == ["--namespace=one", "--namespace=two"]


@needs_helm
def test_cluster_wide_has_the_same_rules_as_one_namespace() -> None:
    wide = next(o for o in of_kind(render(), "ClusterRole") if o["metadata"]["name"] == "lakemirror")
    narrow = next(o for o in of_kind(render("namespaces={a}"), "Role") if o["metadata"]["namespace"] == "a")
    assert wide["rules"] == narrow["rules"]


@needs_helm
@pytest.mark.parametrize("settings", [(), EVERYTHING])
def test_rights_are_few(settings: tuple[str, ...]) -> None:
    rules = [rule for o in render(*settings) if "Role" in o["kind"] for rule in o.get("rules", [])]
    assert rules
    for rule in rules:
        assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"], rule
        assert not {"nodes", "pods/exec", "customresourcedefinitions"} & set(rule["resources"]), rule
        if "secrets" in rule["resources"]:
            assert rule["verbs"] == ["create"], "whoever may read them knows all of them"
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"]), rule


@pytest.mark.guarantee(
    "On demand, the API server holds the operator's account to objects with its label that a pipeline owns"
)
@needs_helm
def test_the_admission_policy_is_about_the_operator_alone_and_whatever_it_may_write() -> None:
    assert not [o for o in render() if o["kind"].startswith("ValidatingAdmissionPolicy")]
    objects = render(*EVERYTHING, "admissionPolicy.enabled=true")
    policy = only(objects, "ValidatingAdmissionPolicy")
    binding = only(objects, "ValidatingAdmissionPolicyBinding")
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    [condition] = policy["spec"]["matchConditions"]
    account = "system:serviceaccount:operators:lakemirror"
    assert condition["expression"] == f"request.userInfo.username == '{account}'"
    matched = {
        (group, resource)
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if set(rule["operations"]) == {"CREATE", "UPDATE", "DELETE"}
    }
    rules = next(o for o in of_kind(objects, "ClusterRole") if o["metadata"]["name"] == "lakemirror")["rules"]
    written = {
        (group, resource)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if {"create", "update", "patch", "delete"} & set(rule["verbs"])
    }
    unmatched = {resource for _, resource in written - matched}
    assert unmatched == {"cdcpipelines", "cdcpipelines/status", "leases", "events"}


@needs_helm
def test_an_admission_policy_needs_a_kubernetes_that_has_it() -> None:
    done = helm("template", "x", str(CHART), "--kube-version=1.29.0", "--set", "admissionPolicy.enabled=true")
    assert done.returncode != 0
    assert "needs Kubernetes 1.30 or newer" in done.stderr


@needs_helm
def test_two_releases_have_two_admission_policies() -> None:
    named = {
        only(render("admissionPolicy.enabled=true", release=release), "ValidatingAdmissionPolicy")[
            "metadata"
        ]["name"]
        for release in ("one", "two")
    }
    assert len(named) == 2


@needs_helm
def test_other_back_ends_bring_their_rights_only_when_asked_for() -> None:
    def groups(*settings: str) -> set[str]:
        rules = next(o for o in of_kind(render(*settings), "ClusterRole"))["rules"]
        return {group for rule in rules for group in rule["apiGroups"]}

    assert not {"sparkoperator.k8s.io", "spark.apache.org"} & groups()
    assert groups("backends.kubeflow=true") - groups() == {"sparkoperator.k8s.io"}
    assert groups("backends.apache=true") - groups() == {"spark.apache.org"}


@needs_helm
def test_all_pods_are_restricted() -> None:
    """As the level `restricted` of Kubernetes' Pod Security Standards says."""
    specs = list(pod_specs(render(*EVERYTHING)))
    assert len(specs) == 3
    for spec in specs:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert all({"emptyDir", "configMap"} & set(volume) for volume in spec["volumes"])
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}


@needs_helm
@pytest.mark.parametrize(
    ("settings", "arguments"),
    [
        ((), ["warn"]),
        (("uninstallCheck=fail",), ["fail"]),
        (("crds.keep=false",), ["fail"]),
        (("namespaces={a,b}",), ["warn", "a", "b"]),
        (("uninstallCheck=none",), None),
    ],
)
def test_before_uninstalling_pipelines_with_a_finalizer_are_looked_for(
    settings: tuple[str, ...], arguments: list[str] | None
) -> None:
    hooks = [
        o
        for o in of_kind(render(*settings), "Pod")
        if o["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    ]
    assert [pod["spec"]["containers"][0]["args"][2:] for pod in hooks] == ([arguments] if arguments else [])


@needs_helm
def test_pods_of_hooks_end_although_a_mesh_injects_proxies_and_all_run_on_linux() -> None:
    for settings in ((), ("nodeSelector.disk=ssd",)):
        objects = render(*settings)
        hooks = [o for o in of_kind(objects, "Pod") if "helm.sh/hook" in o["metadata"]["annotations"]]
        assert len(hooks) == 2
        for pod in hooks:
            for marks in (pod["metadata"]["labels"], pod["metadata"]["annotations"]):
                assert marks["sidecar.istio.io/inject"] == "false"
                assert marks["linkerd.io/inject"] == "disabled"
            assert pod["spec"]["activeDeadlineSeconds"] == 120
        for spec in pod_specs(objects):
            assert spec["nodeSelector"]["kubernetes.io/os"] == "linux"
            assert ("disk" in spec["nodeSelector"]) == bool(settings)


@needs_helm
def test_the_pace_of_a_rollout_reaches_the_operator() -> None:
    objects = render("driverRollout.maxConcurrent=3", "driverRollout.timeout=90s")
    (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["LAKEMIRROR_ROLLOUT_MAX_CONCURRENT"] == "3"
    assert variables["LAKEMIRROR_ROLLOUT_TIMEOUT"] == "90s"


@needs_helm
def test_selectors_find_the_operator_and_nothing_else() -> None:
    objects = render(*EVERYTHING)
    deployment = only(objects, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    hooks = [pod["metadata"]["labels"] for pod in of_kind(objects, "Pod")]
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        only(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        of_kind(objects, "PodMonitor")[0]["spec"]["selector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not any(selector.items() <= hook.items() for hook in hooks)


@needs_helm
def test_extras_are_off_by_default() -> None:
    kinds = {o["kind"] for o in render()}
    assert not {"PodDisruptionBudget", "NetworkPolicy", "PodMonitor", "PrometheusRule"} & kinds


@needs_helm
def test_drivers_are_scraped_where_they_are() -> None:
    def drivers(*settings: str) -> Object:
        found = of_kind(render("podMonitor.enabled=true", *settings), "PodMonitor")
        spec: Object = next(o for o in found if o["metadata"]["name"].endswith("-drivers"))["spec"]
        return spec

    assert drivers()["namespaceSelector"] == {"any": True}
    assert drivers("namespaces={a,b}")["namespaceSelector"] == {"matchNames": ["a", "b"]}
    labels = names.pod_labels("shop", "driver", "uid")
    assert drivers()["selector"]["matchLabels"].items() <= labels.items()
    assert (
        not drivers()["selector"]["matchLabels"].items() <= names.pod_labels("shop", "cleanup", "uid").items()
    )
    template = (ROOT / "sparkapp_templates" / "common" / "driver.yaml.j2").read_text()
    assert drivers()["podMetricsEndpoints"][0]["port"] == "metrics"
    assert "{name: metrics, containerPort: 9404}" in template


@needs_helm
def test_the_alerts_are_those_of_the_rule_file() -> None:
    groups = only(render("prometheusRule.enabled=true"), "PrometheusRule")["spec"]["groups"]
    assert groups == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]


@needs_helm
def test_alerts_are_left_out_by_name_and_link_published_runbooks() -> None:
    settings = "prometheusRule.enabled=true", "prometheusRule.runbooks=https://docs.example/books/"
    off = "prometheusRule.disabled={LakemirrorSchemaDrift,LakemirrorOperatorAbsent}"
    groups = only(render(*settings, off), "PrometheusRule")["spec"]["groups"]
    rules = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    assert not {"LakemirrorSchemaDrift", "LakemirrorOperatorAbsent"} & set(rules)
    lagging = rules["LakemirrorPipelineLagging"]["annotations"]["runbook_url"]
    assert lagging == "https://docs.example/books/LakemirrorPipelineLagging.md"
    typo = "prometheusRule.enabled=true,prometheusRule.disabled={LakemirrorTypo}"
    done = helm("template", "x", str(CHART), KUBERNETES, "--set", typo)
    assert done.returncode != 0
    assert "there is no alert LakemirrorTypo" in done.stderr


@needs_helm
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((), False),
        (("prometheusRule.enabled=true",), True),
        (("prometheusRule.enabled=true", "prometheusRule.runbooks=books.example/docs"), True),
        (("prometheusRule.enabled=true", "prometheusRule.runbooks=https://books.example"), False),
    ],
)
def test_the_notes_say_that_links_to_runbooks_lead_nowhere(
    settings: tuple[str, ...], said: bool, tmp_path: Path
) -> None:
    """`helm template` leaves the notes out, so that a copy of the chart makes an object of them."""
    chart = tmp_path / "lakemirror"
    shutil.copytree(CHART, chart)
    (chart / "templates/shown.yaml").write_text(
        'kind: Shown\nnotes: {{ include (print .Template.BasePath "/NOTES.txt") . | toJson }}\n'
    )
    options = [option for setting in settings for option in ("--set", setting)]
    done = helm("template", "x", str(chart), KUBERNETES, "--show-only", "templates/shown.yaml", *options)
    assert done.returncode == 0, done.stderr
    notes = yaml.safe_load(done.stdout)["notes"]
    assert "helm -n default test x" in notes
    assert ("runbooks lead nowhere" in notes) is said
    assert ("LakemirrorOperatorAbsent fires for ever" in notes) is bool(settings)


@needs_helm
def test_network_policy_narrows_to_what_is_named() -> None:
    policy = only(
        render(
            "networkPolicy.enabled=true",
            "networkPolicy.apiServer.cidrs={10.0.0.1/32}",
            "networkPolicy.apiServer.ports={6443}",
            json_settings=(
                'networkPolicy.metricsFrom=[{"namespaceSelector":{"matchLabels":{"name":"mon"}}}]',
            ),
        ),
        "NetworkPolicy",
    )["spec"]
    assert policy["ingress"][0]["from"] == [{"namespaceSelector": {"matchLabels": {"name": "mon"}}}]
    assert policy["egress"][1] == {
        "ports": [{"port": 6443, "protocol": "TCP"}],
        "to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
    }


@needs_helm
def test_names_stay_within_limits_and_follow_the_release() -> None:
    for release in ("lakemirror", "prod", "p" * 53):
        for o in render(*EVERYTHING, release=release):
            name = o["metadata"]["name"]
            assert len(name) <= 63, name
            assert o["kind"] == "CustomResourceDefinition" or name.startswith(release[:20]), name


@needs_helm
def test_a_foreign_service_account_must_be_named() -> None:
    done = helm("template", "x", str(CHART), KUBERNETES, "--set", "serviceAccount.create=false")
    assert "serviceAccount.name is needed" in done.stderr
    objects = render("serviceAccount.create=false", "serviceAccount.name=given")
    assert of_kind(objects, "ServiceAccount") == []
    assert all(spec["serviceAccountName"] == "given" for spec in pod_specs(objects))
    bound = {s["name"] for o in objects if o["kind"].endswith("RoleBinding") for s in o["subjects"]}
    assert bound == {"given"}


@needs_helm
def test_the_test_asks_for_every_right_of_the_roles() -> None:
    for settings in ((), ("namespaces={one,two}", "backends.kubeflow=true")):
        objects = render(*settings)
        config = next(o for o in of_kind(objects, "ConfigMap") if o["metadata"]["name"].endswith("-test"))
        wanted = json.loads(config["data"]["rights.json"])["wanted"]
        asked = {
            (namespace, json.dumps(rule, sort_keys=True))
            for part in wanted
            for namespace in part["namespaces"]
            for rule in part["rules"]
        }
        given = {
            (o["metadata"].get("namespace", ""), json.dumps(rule, sort_keys=True))
            for o in objects
            if o["kind"] in ("Role", "ClusterRole") and not o["metadata"]["name"].endswith(("-view", "-edit"))
            for rule in o["rules"]
        }
        assert asked == given
        compile(config["data"]["rights.py"], "rights.py", "exec")
