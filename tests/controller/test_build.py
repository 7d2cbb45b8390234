"""The objects as the API gets them: shape, security, pod templates; asserted on, not compared with files."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import yaml

from lakemirror.api import CdcPipeline, load_documents
from lakemirror.controller import authentication, build, names, sparkconf
from lakemirror.controller.act import is_applied
from lakemirror.controller.build import Application
from lakemirror.controller.values import Object
from tests.api.manifests import FULL
from tests.controller.builders import SETTINGS, find, merged, revision, spec

WORKLOADS = {
    "StatefulSet": {},
    "Job": {"trigger": {"availableNow": True}},
    "CronJob": {"trigger": {"availableNow": True, "schedule": "@daily"}},
    "kubeflow": {"spark": {"backend": "kubeflow"}},
    "apache": {"spark": {"backend": "apache"}},
}


def app(name: str = "shop", **changes: Any) -> Application:
    of = spec(**changes)
    return Application(
        "mirrors", name, of, revision(of), of.spark.image or SETTINGS.driver_image, uid="uid-1"
    )


def templates(of: Application) -> Iterator[dict[str, Any]]:
    """All pod templates of an application: the driver's, and the executors' where there are any."""
    workload = build.workload(of)
    spec = workload["spec"]
    if workload["kind"] == "SparkApplication":
        kubeflow = "driver" in spec
        yield spec["driver"]["template"] if kubeflow else spec["driverSpec"]["podTemplateSpec"]
        yield spec["executor"]["template"] if kubeflow else spec["executorSpec"]["podTemplateSpec"]
        return
    yield (spec["jobTemplate"]["spec"] if workload["kind"] == "CronJob" else spec)["template"]
    config = find(build.foundations(of), "ConfigMap", "shop-config")
    assert config is not None
    yield yaml.safe_load(config["data"][f"{of.revision}-executor.yaml"])


@pytest.mark.guarantee("Pods comply with the restricted Pod Security Standard; names fit")
@pytest.mark.parametrize("kind", WORKLOADS)
def test_every_pod_keeps_to_the_restricted_standard(kind: str) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/, and a read-only root besides."""
    for template in templates(app(**WORKLOADS[kind])):
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["securityContext"]["runAsUser"] != 0
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert all(
            volume.keys() - {"name"} <= {"configMap", "emptyDir", "secret"} for volume in pod["volumes"]
        )
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


@pytest.mark.guarantee("Pods comply with the restricted Pod Security Standard; names fit")
@pytest.mark.parametrize("kind", WORKLOADS)
def test_names_fit_with_the_longest_pipeline(kind: str) -> None:
    long = app("p" * 40, **WORKLOADS[kind])
    for made in (*build.foundations(long), build.workload(long), build.cleanup(long)):
        limit = 52 if made["kind"] == "CronJob" else 57  # what controllers append has to fit into 63
        assert len(made["metadata"]["name"]) <= limit
        assert all(len(value) <= 63 for value in made["metadata"]["labels"].values())


@pytest.mark.parametrize("kind", WORKLOADS)
def test_pods_can_be_found_and_tell_their_revision(kind: str) -> None:
    of = app(**WORKLOADS[kind])
    driver, executor = templates(of)
    assert driver["metadata"]["annotations"][names.REVISION] == of.revision
    assert driver["metadata"]["labels"][names.COMPONENT] == "driver"
    assert driver["metadata"]["labels"][names.MANAGED_BY] == names.FIELD_MANAGER
    assert names.MANAGED_BY not in executor["metadata"]["labels"], "executors would fill the operator's watch"
    workload = build.workload(of)
    assert workload["metadata"]["annotations"][names.REVISION] == of.revision


def test_one_driver_and_no_second_one_beside_it() -> None:
    made = build.workload(app())["spec"]
    assert (made["replicas"], made["podManagementPolicy"]) == (1, "Parallel")
    assert made["updateStrategy"] == {"type": "OnDelete"}
    selected = made["selector"]["matchLabels"].items()
    assert selected <= made["template"]["metadata"]["labels"].items()
    for kind in ("Job", "CronJob"):
        workload = build.workload(app(**WORKLOADS[kind]))["spec"]
        job = workload["jobTemplate"]["spec"] if kind == "CronJob" else workload
        assert job["podReplacementPolicy"] == "Failed"
        assert job["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("template", [{}, {"spec": {"restartPolicy": "OnFailure"}}])
def test_a_drained_node_uses_up_no_attempt_of_a_job(template: dict[str, Any]) -> None:
    """Kubernetes allows the policy only with the restart policy Never."""
    once, cron = (app(**WORKLOADS[kind], spark={"podTemplate": template}) for kind in ("Job", "CronJob"))
    cron_job = build.workload(cron)["spec"]["jobTemplate"]
    for job in (build.workload(once), cron_job, build.cleanup(once)):
        [rule] = job["spec"]["podFailurePolicy"]["rules"]
        assert rule == {
            "action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        }
        assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


TEXTS = (
    "😀",
    "a\U0010ffffb",
    r"\ud83d\ude00",
    r"\\ud83d\ude00",
    "\\😀\\b",
    "é\x7f\x85\u2028\u2029\ufeff\ufffe",
    '\0\x1b\t\n\r"\\/<&>',
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", WORKLOADS)
def test_whatever_text_a_spec_has_reaches_the_objects(kind: str, text: str) -> None:
    template = {"metadata": {"annotations": {"said": text}}}
    changes = merged(WORKLOADS[kind], {"spark": {"podTemplate": template}})
    of = app(**changes, tables=[{"source": "public.a", "filter": f"v = '{text}'"}])
    for pod in templates(of):
        assert pod["metadata"]["annotations"]["said"] == text
    config = find(build.foundations(of), "ConfigMap", "shop-config")
    assert config is not None
    assert config["data"] == build.config_data(of)
    assert CdcPipeline.from_yaml(config["data"][f"{of.revision}.yaml"]).spec == of.spec


def test_executors_reach_the_driver_by_name_before_it_is_ready() -> None:
    of = app()
    service = find(build.foundations(of), "Service")
    assert service is not None
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    labels = next(templates(of))["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    conf = json.loads(build.config_data(of)[f"{of.revision}-spark.json"])
    assert conf["spark.driver.host"] == f"{service['metadata']['name']}.mirrors.svc"
    assert {port["port"] for port in service["spec"]["ports"]} >= {
        int(conf["spark.driver.port"]),
        int(conf["spark.driver.blockManager.port"]),
    }


def test_the_driver_may_do_no_more_than_it_does() -> None:
    def rules(of: Application) -> list[dict[str, Any]]:
        role = find(build.foundations(of), "Role")
        assert role is not None
        found: list[dict[str, Any]] = role["rules"]
        return found

    reporting = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": ["shop-progress"],
        "verbs": ["get", "patch"],
    }
    assert rules(app(spark={"executors": {"max": 0}})) == [reporting]
    [first, pods] = rules(app())
    assert (first, pods["resources"]) == (reporting, ["pods"])
    for of in (app(), app(spark={"backend": "apache"})):
        assert "secrets" not in json.dumps(rules(of))


KAFKA_LOGIN = {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "secret": "kafka-auth"}


def test_secrets_are_mounted_and_never_written_into_an_object() -> None:
    for backend in ("native", "kubeflow", "apache"):
        of = app(source={"kafka": {"security": KAFKA_LOGIN}}, spark={"backend": backend})
        driver, executor = templates(of)
        mounted = {"name": "secret-0", "secret": {"secretName": "kafka-auth"}}
        assert mounted in driver["spec"]["volumes"]
        assert "kafka-auth" not in json.dumps(executor)  # what executors need of it comes with their tasks
    for template in (driver, executor):
        [container] = template["spec"]["containers"]
        assert "envFrom" not in container
        env = [entry for entry in container.get("env", []) if entry["name"] != authentication.VARIABLE]
        assert all("secretKeyRef" not in json.dumps(entry) for entry in env)


def settings_of(of: Application) -> dict[str, str]:
    """Spark's settings, as its driver reads them."""
    workload = build.workload(of)
    if workload["kind"] == "SparkApplication":
        found: dict[str, str] = workload["spec"]["sparkConf"]
        return found
    config = next(v for v in build.driver_pod(of)["spec"]["volumes"] if v["name"] == "config")["configMap"]
    [key] = [item["key"] for item in config["items"] if item["path"] == "spark.json"]
    read: dict[str, str] = json.loads(build.config_data(of)[key])
    return read


BACKENDS = ["native", "kubeflow", "apache"]


@pytest.mark.guarantee(
    "Nobody connects to a driver with executors, or to these, without the secret of their pipeline"
    "; what they send is encrypted, and Spark's UI is off"
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_nobody_connects_to_a_driver_and_its_executors_without_the_secret(backend: str) -> None:
    of = app(spark={"backend": backend})
    conf = settings_of(of)
    assert conf["spark.authenticate"] == conf["spark.network.crypto.enabled"] == "true"
    assert conf["spark.network.crypto.saslFallback"] == conf["spark.ui.enabled"] == "false"
    found = build.foundations(of)
    secret = find(found, "Secret")
    assert secret is not None
    assert not {"data", "stringData"} & secret.keys(), "who may view a rendering would know it"
    kinds = [(each["kind"], each["metadata"]["name"]) for each in found]
    config = kinds.index(("ConfigMap", "shop-config"))
    assert kinds.index(("Secret", secret["metadata"]["name"])) < config
    assert found[config]["metadata"]["annotations"][names.AUTHENTICATION] == secret["metadata"]["name"]
    for template in templates(of):
        [container] = template["spec"]["containers"]
        [volume] = [each for each in template["spec"]["volumes"] if each["name"] == "authentication"]
        [mount] = [each for each in container["volumeMounts"] if each["name"] == "authentication"]
        [item] = volume["secret"]["items"]
        assert volume["secret"]["secretName"] == secret["metadata"]["name"]
        assert f"{mount['mountPath']}/{item['path']}" == conf["spark.authenticate.secret.file"]
    [variable] = [each for each in container["env"] if each["name"] == "_SPARK_AUTH_SECRET"]
    reference = {"name": secret["metadata"]["name"], "key": authentication.ENCODED_KEY}
    assert variable == {"name": "_SPARK_AUTH_SECRET", "valueFrom": {"secretKeyRef": reference}}


def test_both_forms_of_the_secret_are_what_spark_compares() -> None:
    """Spark encodes the bytes of the file. Nobody has the same secret twice."""
    data, other = authentication.new_data(), authentication.new_data()
    file, variable = (b64decode(data[key]) for key in (authentication.KEY, authentication.ENCODED_KEY))
    assert b64encode(file) == variable
    assert len(file) >= 32
    assert data != other


def test_the_secret_belongs_to_one_pipeline_and_not_to_the_next_of_its_name() -> None:
    first, again = (names.authentication("shop", uid) for uid in ("uid-1", "uid-2"))
    assert first != again
    assert first.startswith("shop-")


@pytest.mark.parametrize("backend", BACKENDS)
def test_settings_of_the_spec_come_before_ours(backend: str) -> None:
    """Such as to see the UI, through kubectl port-forward."""
    given = {"spark.ui.enabled": "true", "spark.authenticate": "false", "spark.io.encryption.enabled": "true"}
    assert settings_of(app(spark={"backend": backend, "conf": given})).items() >= given.items()


@pytest.mark.parametrize("backend", ["kubeflow", "apache"])
def test_a_driver_alone_in_cluster_mode_makes_up_a_secret_for_itself(backend: str) -> None:
    of = app(spark={"backend": backend, "executors": {"max": 0}})
    conf = settings_of(of)
    assert conf["spark.authenticate"] == conf["spark.network.crypto.enabled"] == "true"
    assert "spark.authenticate.secret.file" not in conf
    assert find(build.foundations(of), "Secret") is None


def test_a_driver_alone_has_no_secret_and_listens_to_itself() -> None:
    of = app(spark={"executors": {"max": 0}})
    assert not {"spark.authenticate", "spark.driver.host"} & settings_of(of).keys()
    assert find(build.foundations(of), "Secret") is None
    assert all(volume["name"] != "authentication" for volume in next(templates(of))["spec"]["volumes"])


@pytest.mark.guarantee("An upgrade that brings a secret for executors breaks no driver that runs without one")
def test_pods_without_the_secret_read_settings_without_it() -> None:
    """A cleanup has no executors; a pod of an earlier version may start its container again."""
    of = app()
    pod = build.cleanup(of)["spec"]["template"]["spec"]
    assert all(volume["name"] != "authentication" for volume in pod["volumes"])
    [config] = [volume["configMap"] for volume in pod["volumes"] if volume["name"] == "config"]
    keys = {item["path"]: item["key"] for item in config["items"]}
    assert keys["spark.json"] == f"{of.revision}-spark.json"
    assert "spark.authenticate" not in json.loads(build.config_data(of)[keys["spark.json"]])


METRICS = {"ports": [{"port": 9404, "protocol": "TCP"}]}


@pytest.mark.guarantee(
    "Network policies let only executors reach their driver, and only these reach an executor"
)
@pytest.mark.parametrize("kind", WORKLOADS)
def test_only_executors_reach_the_ports_of_their_driver(kind: str) -> None:
    of = app(**WORKLOADS[kind])
    driver, executor = (template["metadata"]["labels"].items() for template in templates(of))
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(of, "NetworkPolicy")}
    assert set(policies) == {"shop-driver", "shop-executors"}
    for name, own, other in (("shop-driver", driver, executor), ("shop-executors", executor, driver)):
        selected = policies[name]["podSelector"]["matchLabels"].items()
        assert selected <= own
        assert not selected <= other
        assert policies[name]["policyTypes"] == ["Ingress"]
    metrics, spark = policies["shop-driver"]["ingress"]
    assert metrics == METRICS
    assert [port["port"] for port in spark["ports"]] == [7078, 7079]
    [peer] = spark["from"]
    assert peer["podSelector"]["matchLabels"].items() <= executor
    [among] = policies["shop-executors"]["ingress"]
    peers = [peer["podSelector"]["matchLabels"].items() for peer in among["from"]]
    assert [peers[0] <= driver, peers[1] <= executor] == [True, True]
    assert all("namespaceSelector" not in each for each in (peer, *among["from"]))


def test_a_driver_alone_is_reached_for_its_metrics_only() -> None:
    [policy] = of_kind(app(spark={"executors": {"max": 0}}), "NetworkPolicy")
    assert policy["spec"]["ingress"] == [METRICS]


@pytest.mark.parametrize(
    ("conf", "ports"),
    [
        ({"spark.driver.port": "9000", "spark.blockManager.port": "9001"}, [9000, 9001]),
        ({"spark.driver.blockManager.port": "9001"}, [7078, 9001]),
        ({"spark.driver.port": "0"}, None),  # Spark chooses one
    ],
)
def test_the_network_policy_follows_the_ports_of_the_spec(
    conf: dict[str, str], ports: list[int] | None
) -> None:
    policy = next(each for each in of_kind(app(spark={"conf": conf}), "NetworkPolicy"))
    rule = policy["spec"]["ingress"][1]
    assert rule["from"]
    assert ([each["port"] for each in rule["ports"]] if "ports" in rule else None) == ports


def of_kind(of: Application, kind: str) -> list[Object]:
    return [each for each in build.foundations(of) if each["kind"] == kind]


CERTIFICATE = "/etc/lakemirror-secrets/reader/ca.crt"


@pytest.mark.guarantee("Executors get no Secret that only the driver reads")
@pytest.mark.parametrize(
    ("spec", "mounted"),
    [
        ({}, []),
        ({"url": f"jdbc:postgresql://db/shop?sslrootcert={CERTIFICATE}"}, ["reader"]),
        ({"url": f"jdbc:mariadb://db/?serverSslCert={CERTIFICATE.replace('/', '%2F')}"}, ["reader"]),
        ({"url": "jdbc:postgresql://db/shop?sslrootcert=/etc/lakemirror-secrets/reader-2/ca.crt"}, []),
        ({"conf": {"spark.executor.extraJavaOptions": f"-Da={CERTIFICATE}"}}, ["reader"]),
        ({"conf": {"spark.executorEnv.KEYS": "/etc/lakemirror-secrets/kafka-auth"}}, ["kafka-auth"]),
    ],
)
def test_executors_get_only_secrets_whose_files_they_open(spec: dict[str, Any], mounted: list[str]) -> None:
    """They connect to databases themselves, and a URL may name a certificate."""
    url = spec.get("url", "jdbc:postgresql://db/shop")
    of = app(
        source={"kafka": {"security": KAFKA_LOGIN}},
        verify={"jdbc": {"url": url, "secret": "reader"}, "schedule": "0 * * * *"},
        spark={"conf": spec.get("conf", {})},
    )
    driver, executor = templates(of)
    for template, names_of in ((driver, ["kafka-auth", "reader"]), (executor, mounted)):
        volumes = [each for each in template["spec"]["volumes"] if each["name"] != "authentication"]
        secrets = [each["secret"]["secretName"] for each in volumes if "secret" in each]
        assert secrets == names_of
        mounts = [each["mountPath"] for each in template["spec"]["containers"][0]["volumeMounts"]]
        assert [each for each in mounts if "secrets" in each] == [
            f"/etc/lakemirror-secrets/{name}" for name in names_of
        ]


@pytest.mark.guarantee("No pod fills the disk of its node")
@pytest.mark.parametrize("backend", ["native", "kubeflow", "apache"])
def test_no_pod_fills_the_disk_of_its_node(backend: str) -> None:
    def sizes(**spark: Any) -> list[Any]:
        of = app(spark={"backend": backend, **spark})
        return [
            volume["emptyDir"]
            for template in templates(of)
            for volume in template["spec"]["volumes"]
            if volume["name"] == "tmp"
        ]

    assert sizes() == [{"sizeLimit": "50Gi"}] * 2
    larger = {"spec": {"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "2Ti"}}]}}
    assert sizes(podTemplate=larger) == [{"sizeLimit": "2Ti"}] * 2
    assert sizes(driver={"podTemplate": larger}) == [{"sizeLimit": "2Ti"}, {"sizeLimit": "50Gi"}]
    unlimited = {"spec": {"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": None}}]}}
    assert sizes(podTemplate=unlimited) == [{}] * 2


def test_memory_is_the_heap_and_what_goes_beside_it() -> None:
    [container] = build.driver_pod(app(spark={"driver": {"memory": "4g", "cores": 3}}))["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "3", "memory": "5734Mi"},
        "limits": {"memory": "5734Mi"},
    }
    [container] = build.driver_pod(app(spark={"driver": {"memory": "512m"}}))["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": "1536Mi"}


@pytest.mark.parametrize(
    ("conf", "memory"),
    [
        ({"spark.driver.memory": "8g"}, "11468Mi"),
        ({"spark.driver.memory": "2048"}, "3072Mi"),
        ({"spark.driver.memory": "2GB", "spark.driver.memoryOverhead": "512"}, "2560Mi"),
        ({"spark.driver.memoryOverhead": "2g"}, "6144Mi"),
        ({"spark.driver.memory": "much"}, "5734Mi"),
        ({"spark.lakemirror.engine": "columns"}, "5734Mi"),
    ],
)
def test_settings_of_spark_count_for_the_containers_memory(conf: dict[str, str], memory: str) -> None:
    """They win over the field for the JVM; a smaller container would be killed."""
    pod = build.driver_pod(app(spark={"driver": {"memory": "4g"}, "conf": conf}))
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"memory": memory}


def test_python_workers_have_memory_where_they_run() -> None:
    """A worker for each core, since changes are applied in columns."""
    alone = app(spark={"driver": {"cores": 2}, "executors": {"max": 0}})
    assert sparkconf.driver_memory(alone.spec.spark) == f"{2048 + 1024 + 2 * 768}Mi"
    beside = app(spark={"executors": {"cores": 2}})
    [container] = build.driver_pod(beside)["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": "3072Mi"}
    settings = json.loads(build.config_data(beside)[f"{beside.revision}-spark.json"])
    assert settings["spark.executor.minMemoryOverhead"] == f"{384 + 2 * 768}m"
    assert sparkconf.executor_memory(beside.spec.spark) == f"{4096 + 384 + 2 * 768}Mi"
    more = app(spark={"conf": {"spark.executor.cores": "8"}})
    assert sparkconf.executor_memory(more.spec.spark) == f"{4096 + 384 + 8 * 768}Mi"
    alone = app(spark={"executors": {"max": 0}, "conf": {"spark.master": "local[6, 2]"}})
    assert sparkconf.driver_memory(alone.spec.spark) == f"{2048 + 1024 + 6 * 768}Mi"
    assert "spark.driver.memoryOverhead" not in settings  # and the heap is the same
    assert (settings["spark.driver.memory"], settings["spark.executor.memory"]) == ("2g", "4g")


@pytest.mark.parametrize(
    ("conf", "least"),
    [
        ({"spark.lakemirror.engine": "spark"}, None),
        ({"spark.lakemirror.writer": "merge"}, None),
        ({"spark.lakemirror.engine": "columns"}, f"{384 + 2 * 768}m"),
        ({"spark.lakemirror.engine": "columns", "spark.lakemirror.writer": "merge"}, f"{384 + 2 * 768}m"),
    ],
)
def test_without_python_workers_there_is_no_memory_for_them(conf: dict[str, str], least: str | None) -> None:
    of = app(spark={"conf": conf})
    settings = json.loads(build.config_data(of)[f"{of.revision}-spark.json"])
    assert settings.get("spark.executor.minMemoryOverhead") == least
    workers = 768 if least else 0
    alone = app(spark={"executors": {"max": 0}, "conf": conf})
    assert sparkconf.driver_memory(alone.spec.spark) == f"{2048 + 1024 + workers}Mi"
    assert sparkconf.executor_memory(of.spec.spark) == f"{4096 + (384 + 2 * workers if least else 409)}Mi"


class TestExecutors:
    def conf(self, **executors: int) -> dict[str, str]:
        of = app(spark={"executors": executors})
        found: dict[str, str] = json.loads(build.config_data(of)[f"{of.revision}-spark.json"])
        return found

    def test_a_range_follows_the_load(self) -> None:
        conf = self.conf(min=1, max=8)
        assert conf["spark.dynamicAllocation.enabled"] == "true"
        assert (
            conf["spark.dynamicAllocation.minExecutors"],
            conf["spark.dynamicAllocation.maxExecutors"],
        ) == ("1", "8")
        assert "spark.executor.instances" not in conf

    def test_a_number_is_fixed(self) -> None:
        conf = self.conf(min=3, max=3)
        assert conf["spark.executor.instances"] == "3"
        assert "spark.dynamicAllocation.enabled" not in conf

    def test_none_is_local_mode(self) -> None:
        assert self.conf(min=0, max=0)["spark.master"] == "local[1]"

    @pytest.mark.parametrize("backend", ["kubeflow", "apache"])
    def test_none_is_local_mode_with_other_back_ends(self, backend: str) -> None:
        made = build.workload(app(spark={"backend": backend, "executors": {"max": 0}}))
        assert made["spec"]["sparkConf"]["spark.kubernetes.driver.master"] == "local[1]"

    @pytest.mark.parametrize("backend", ["kubeflow", "apache"])
    def test_the_jvms_of_other_back_ends_stand_in_utc(self, backend: str) -> None:
        conf = {"spark.driver.extraJavaOptions": "-Xss4m"}
        made = build.workload(app(spark={"backend": backend, "conf": conf}))["spec"]["sparkConf"]
        assert made["spark.driver.extraJavaOptions"] == "-Duser.timezone=UTC -XX:+UseParallelGC -Xss4m"
        assert made["spark.executor.extraJavaOptions"] == "-Duser.timezone=UTC -XX:+UseParallelGC"

    @pytest.mark.parametrize("backend", ["kubeflow", "apache"])
    def test_the_jvms_of_other_back_ends_may_ask_the_token_endpoint(self, backend: str) -> None:
        oauth = {"tokenEndpointUrl": "https://idp.example.org/token"}
        security = {
            "protocol": "SASL_SSL",
            "mechanism": "OAUTHBEARER",
            "secret": "kafka-auth",
            "oauth": oauth,
        }
        of = app(source={"kafka": {"security": security}}, spark={"backend": backend})
        conf = build.workload(of)["spec"]["sparkConf"]
        for role in ("driver", "executor"):
            assert conf[f"spark.{role}.extraJavaOptions"].endswith(
                " -Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=https://idp.example.org/token"
            )


class TestPodTemplate:
    TEMPLATE: ClassVar[dict[str, Any]] = {
        "metadata": {"labels": {"team": "data", names.COMPONENT: "mine"}, "annotations": {"a": "b"}},
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "spark"}],
            "terminationGracePeriodSeconds": None,
            "securityContext": {"runAsUser": 1000},
            "volumes": [{"name": "more", "emptyDir": {}}, {"name": "tmp", "emptyDir": {"medium": "Memory"}}],
            "containers": [
                {
                    "name": "driver",
                    "env": [{"name": "A", "value": "1"}],
                    "volumeMounts": [{"name": "more", "mountPath": "/more"}],
                },
                {"name": "executor", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
                {"name": "log-shipper", "image": "logs:1"},
            ],
        },
    }

    def test_it_is_laid_over_ours(self) -> None:
        pod = build.driver_pod(app(spark={"podTemplate": self.TEMPLATE}))
        plain = build.driver_pod(app())
        assert pod["metadata"]["labels"].items() >= {"team": "data", names.COMPONENT: "driver"}.items()
        spec = pod["spec"]
        assert (spec["nodeSelector"], spec["tolerations"]) == (
            {"kubernetes.io/os": "linux", "disk": "ssd"},
            [{"key": "spark"}],
        )
        assert "terminationGracePeriodSeconds" not in spec
        assert spec["securityContext"] == plain["spec"]["securityContext"] | {"runAsUser": 1000}
        assert {"name": "tmp", "emptyDir": {"sizeLimit": "50Gi", "medium": "Memory"}} in spec["volumes"]
        assert [container["name"] for container in spec["containers"]] == ["driver", "log-shipper"]
        driver = spec["containers"][0]
        assert driver["args"] == ["python3", "-m", "lakemirror.pod"]
        grace = {"name": "LAKEMIRROR_GRACE_SECONDS", "value": "23"}
        env = [
            grace if each["name"] == grace["name"] else each for each in plain["spec"]["containers"][0]["env"]
        ]
        assert driver["env"] == [*env, {"name": "A", "value": "1"}]
        assert {mount["mountPath"] for mount in driver["volumeMounts"]} == {
            "/etc/lakemirror",
            authentication.FOLDER,
            "/tmp",
            "/more",
        }

    def test_executors_get_their_part(self) -> None:
        spec = build.executor_pod(app(spark={"podTemplate": self.TEMPLATE}))["spec"]
        assert [container["name"] for container in spec["containers"]] == ["executor", "log-shipper"]
        assert spec["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "1"}}

    def test_other_back_ends_call_the_containers_as_spark_does(self) -> None:
        of = app(spark={"podTemplate": self.TEMPLATE, "backend": "apache"})
        found = [[c["name"] for c in template["spec"]["containers"]] for template in templates(of)]
        assert found == [
            ["spark-kubernetes-driver", "log-shipper"],
            ["spark-kubernetes-executor", "log-shipper"],
        ]
        assert all("args" not in c for t in templates(of) for c in t["spec"]["containers"])


def test_no_text_of_a_manifest_changes_the_structure() -> None:
    nasty = "\"}, evil: [{\n- <&>'{{ 7 * 7 }}"
    of = app(restartToken=nasty, spark={"conf": {"spark.a": nasty}, "backend": "kubeflow"})
    made = build.workload(of)
    assert made["spec"]["sparkConf"]["spark.a"] == nasty
    config = find(build.foundations(of), "ConfigMap", "shop-config")
    assert config is not None
    assert CdcPipeline.from_yaml(config["data"][f"{of.revision}.yaml"]).spec == of.spec


@pytest.mark.parametrize("backend", ["native", "kubeflow", "apache"])
def test_the_manifest_with_everything_can_be_built(backend: str) -> None:
    [document] = load_documents(FULL)
    document["spec"]["spark"]["backend"] = backend
    full = CdcPipeline.from_dict(document).spec
    of = Application("mirrors", "inventory", full, revision(full), full.spark.image or "")
    made: list[Object] = [*build.foundations(of), build.workload(of)]
    account = find(made, "ServiceAccount")
    assert account is not None
    assert account["imagePullSecrets"] == [{"name": "pull"}]


def test_the_hash_tells_any_change() -> None:
    def hashes(of: Application) -> list[str]:
        made = [*build.foundations(of), build.workload(of)]
        return [document["metadata"]["annotations"][names.APPLIED] for document in made]

    assert hashes(app()) == hashes(app())
    assert hashes(app())[-1] != hashes(app(suspend=True, onBadRecord="fail"))[-1]


@pytest.mark.guarantee(
    "What the spec does not name is not applied; what others add to the account stays; the driver knows the "
    "grace period of its pod"
)
@pytest.mark.parametrize(
    ("template", "period", "grace"),
    [
        ({}, 120, "90"),
        ({"terminationGracePeriodSeconds": 600}, 600, "570"),
        ({"terminationGracePeriodSeconds": 20}, 20, "15"),
        ({"terminationGracePeriodSeconds": 0}, 0, "0"),
        ({"terminationGracePeriodSeconds": None}, None, "23"),
    ],
)
@pytest.mark.parametrize("place", ["podTemplate", "driver"])
def test_the_driver_knows_the_grace_period_of_its_pod(
    template: dict[str, Any], period: int | None, grace: str, place: str
) -> None:
    whole = {"podTemplate": {"spec": template}}
    made = build.driver_pod(app(spark=whole if place == "podTemplate" else {"driver": whole}))
    [container] = made["spec"]["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert (made["spec"].get("terminationGracePeriodSeconds"), env["LAKEMIRROR_GRACE_SECONDS"]) == (
        period,
        grace,
    )


def test_an_override_of_the_grace_period_in_the_environment_does_not_count() -> None:
    env = [{"name": "LAKEMIRROR_GRACE_SECONDS", "value": "7200"}]
    template = {"spec": {"containers": [{"name": "driver", "env": env}]}}
    [container] = build.driver_pod(app(spark={"podTemplate": template}))["spec"]["containers"]
    assert {"name": "LAKEMIRROR_GRACE_SECONDS", "value": "90"} in container["env"]


@pytest.mark.guarantee(
    "What the spec does not name is not applied; what others add to the account stays; the driver knows the "
    "grace period of its pod"
)
@pytest.mark.parametrize("backend", ["native", "kubeflow", "apache"])
def test_nothing_is_empty_that_the_spec_does_not_name(backend: str) -> None:
    """An empty list or map would be applied by force against whoever fills it."""

    def empty(here: Any, at: str) -> list[str]:
        if isinstance(here, dict):
            own = [] if here or at.endswith(("tmp", "emptyDir")) else [at]
            return own + [found for key, value in here.items() for found in empty(value, f"{at}.{key}")]
        if isinstance(here, list):
            return ([] if here else [at]) + [found for each in here for found in empty(each, at)]
        return [at] if here is None else []

    of = app(spark={"backend": backend})
    for made in (*build.foundations(of), build.workload(of), build.cleanup(of)):
        assert empty(made, made["kind"]) == []


@pytest.mark.guarantee(
    "What the spec does not name is not applied; what others add to the account stays; the driver knows the "
    "grace period of its pod"
)
def test_logins_that_others_add_to_the_account_are_no_reason_to_apply_it() -> None:
    for secrets, added in (([], "builder"), (["pull"], "builder")):
        spark = {"imagePullSecrets": secrets} if secrets else {}
        account = find(build.foundations(app(spark=spark)), "ServiceAccount")
        assert account is not None
        assert ("imagePullSecrets" in account) == bool(secrets)
        there = {**account, "imagePullSecrets": [*account.get("imagePullSecrets", []), {"name": added}]}
        assert is_applied(account, there)
    assert not is_applied(account, {**account, "imagePullSecrets": [{"name": "builder"}]})
