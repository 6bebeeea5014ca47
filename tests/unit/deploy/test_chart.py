"""The Helm chart: rendered by the Helm library with many values, and checked as a whole."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from gangline.api.job_resources import JOB_KINDS
from gangline.api.validation.security_standards import Level, LevelVersion, find_violations
from gangline.api.validation.validate import validate_manifest
from gangline.cli.main import gangline
from gangline.deploy.chart import Chart, ClusterCapabilities, ReleaseSettings
from gangline.deploy.preflight import LOWEST_MINOR

helm = pytest.importorskip("helm_python", reason="the Helm library has no build for this platform")

DEPLOY = Path(__file__).parents[3] / "deploy"
CHART = DEPLOY / "chart"
NAMESPACE = "gangline-system"
CRD = "CustomResourceDefinition"
CLUSTER_WIDE = {
    "ClusterRole",
    "ClusterRoleBinding",
    "ClusterTrainingRuntime",
    CRD,
    "MutatingWebhookConfiguration",
    "PriorityClass",
    "ValidatingWebhookConfiguration",
}

Manifest = Mapping[str, Any]
NO_CRDS = {"crds": {"install": False}}
CHART_WITHOUT_HELM = Chart.load()

VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": {
        "brain": {"enabled": True},
        "dashboard": {
            "enabled": True,
            "auth": "header",
            "impersonation": True,
            "readOnly": True,
            "basePath": "/gangline",
            "tlsSecret": "dashboard-tls",
            "args": ["--trusted-proxy=10.0.0.7"],
        },
        "webhook": {"failurePolicy": "Fail", "queueAccess": True, "progress": True},
    },
    "operator only": {"scheduler": {"enabled": False}, "webhook": {"enabled": False}},
    "scheduler only": {"operator": {"enabled": False}},
    "nothing": {"operator": {"enabled": False}, "scheduler": {"enabled": False}},
    "no CRDs": {"crds": {"install": False}},
    "one kind": {"kinds": ["PyTorchJob"]},
    "two kinds": {"kinds": ["MPIJob", "ElasticJob"]},
    "namespaces": {"namespaces": ["a", "b"]},
    "one replica": {"operator": {"replicas": 1}, "scheduler": {"replicas": 1}},
    "mirror": {"image": {"registry": "mirror.example/team/", "pullSecrets": ["mirror"]}},
    "digest": {"image": {"digest": f"sha256:{'a' * 64}"}},
    "boards": {"metrics": {"grafanaBoards": True, "labels": {"release": "p"}}},
    "no roles": {"rbac": {"create": False}},
    "no aggregation": {"rbac": {"aggregate": False}},
    "no priority class": {"priorityClass": {"create": False}},
    "database": {
        "brain": {
            "enabled": True,
            "database": "postgresql://brain@db/brain",
            "storage": "",
            "storageClassName": "fast",
            "env": [{"name": "PGPASSWORD", "value": "p"}],
        }
    },
    "placement": {
        component: {
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"key": "system", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "topologySpreadConstraints": [{"maxSkew": 1}],
            "priorityClassName": "system-cluster-critical",
            "podLabels": {"team": "infra"},
            "podAnnotations": {"note": "x"},
            "args": ["--log-level=debug"],
            "env": [{"name": "TZ", "value": "UTC"}],
            "podDisruptionBudget": False,
        }
        for component in ("operator", "scheduler")
    },
    "user of the platform": {
        "podSecurityContext": {"runAsUser": None, "fsGroup": None},
    },
}
each_values = pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)


@cache
def chart() -> Any:
    """The loaded chart."""
    return helm.Chart.load(CHART)


def render(values: Manifest, *, crds: bool = False) -> list[Manifest]:
    """The objects that a release with these values has; only on demand the CRDs, which are long,
    and only their metadata.
    """
    return rendered(json.dumps(values if crds else {**NO_CRDS, **values}), crds)


@cache
def rendered(values: str, crds: bool) -> list[Manifest]:
    """The objects, which no test changes: they are parsed once for all tests."""
    return [
        manifest
        for name, text in texts(values).items()
        if name.endswith(".yaml") and (crds or not name.endswith("/crds.yaml"))
        for manifest in loaded(without_specs(text) if name.endswith("/crds.yaml") else text)
        if manifest
    ]


def loaded(text: str) -> Iterator[Manifest]:
    """The objects in a text."""
    return yaml.load_all(text, yaml.CSafeLoader)


def without_specs(text: str) -> str:
    """The metadata of the objects in a text: their specs take seconds to parse."""
    return "\n---\n".join(each.partition("\nspec:")[0] for each in text.split("\n---\n"))


@cache
def texts(values: str) -> dict[str, str]:
    """The rendered templates."""
    found: dict[str, str] = chart().render(
        values=json.loads(values), name="train", namespace=NAMESPACE
    )
    return found


def render_without_helm(values: Manifest, *release: ReleaseSettings, **more: Any) -> list[Manifest]:
    """The objects as ``gangline deploy`` renders them, CRDs included."""
    return CHART_WITHOUT_HELM.render(CHART_WITHOUT_HELM.complete(values), *release, **more)


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    """The objects of some kinds."""
    return [each for each in manifests if each["kind"] in kinds]


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest, Manifest]]:
    """Name, metadata and spec of every pod and pod template."""
    for each in of_kind(manifests, "Deployment", "Pod"):
        pod = each["spec"]["template"] if each["kind"] == "Deployment" else each
        yield each["metadata"]["name"], pod["metadata"], pod["spec"]


def identity(manifest: Manifest) -> tuple[str, str, str]:
    """Kind, namespace and name."""
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", ""), metadata["name"]


def test_helm_finds_no_fault_in_it() -> None:
    found = helm.lint(CHART, strict=True)
    assert found["errors"] == []
    assert {each["error"] for each in found["messages"]} <= {"icon is recommended"}


@each_values
def test_objects_are_complete_and_different(values: Manifest) -> None:
    found = render(values)
    assert len({identity(each) for each in found}) == len(found)
    for each in found:
        assert bool(each["metadata"].get("namespace")) == (each["kind"] not in CLUSTER_WIDE)


def test_the_same_values_give_the_same_objects() -> None:
    values = json.dumps(VALUES["everything"] | NO_CRDS)
    assert texts.__wrapped__(values) == texts(values)


@each_values
def test_what_objects_refer_to_exists(values: Manifest) -> None:
    found = render(values)
    names = {identity(each) for each in found}
    for _, metadata, spec in pods(found):
        assert ("ServiceAccount", NAMESPACE, spec["serviceAccountName"]) in names
        if spec.get("priorityClassName") == "gangline-system":
            assert ("PriorityClass", "", "gangline-system") in names
        for volume in spec.get("volumes", []):
            if config := volume.get("configMap"):
                assert ("ConfigMap", NAMESPACE, config["name"]) in names
            if claim := volume.get("persistentVolumeClaim"):
                assert ("PersistentVolumeClaim", NAMESPACE, claim["claimName"]) in names
        assert metadata.get("labels")
    for each in of_kind(found, "Service", "PodDisruptionBudget", "Deployment"):
        selector = each["spec"]["selector"]
        labels = selector.get("matchLabels", selector)
        # A Deployment's selector is immutable: a release must never change it.
        assert labels == {"app.kubernetes.io/name": each["metadata"]["name"]}
        ((_, _, spec),) = [p for p in pods(found) if labels.items() <= p[1]["labels"].items()]
        ports = {port["name"]: port["containerPort"] for port in spec["containers"][0]["ports"]}
        for port in each["spec"].get("ports", []):
            assert ports[port["name"]] == ports.get(port["targetPort"], port["targetPort"])
    for each in of_kind(found, "RoleBinding", "ClusterRoleBinding"):
        role = each["roleRef"]
        namespace = each["metadata"].get("namespace", "") if role["kind"] == "Role" else ""
        assert (role["kind"], namespace, role["name"]) in names
        (subject,) = each["subjects"]
        assert ("ServiceAccount", subject["namespace"], subject["name"]) in names


@each_values
def test_programs_take_their_arguments(values: Manifest) -> None:
    for name, _, spec in pods(render(values)):
        (container,) = spec["containers"]
        program, *commands = container["command"]
        assert program == "gangline"
        command: Any = gangline
        for each in commands:
            command = command.get_command(command.make_context("gangline", [each]), each)
        # Parses the arguments; an unknown one, or a wrong value, is an error.
        arguments = [each for each in container["args"] if "=/etc/gangline/" not in each]
        command.make_context(name, arguments)


@pytest.mark.parametrize(("timeout", "seconds"), [("300s", 300), ("5m", 300), ("1h", 3600)])
def test_the_job_of_helm_test_is_valid_and_meets_the_restricted_profile(
    timeout: str, seconds: int
) -> None:
    found = of_kind(render({"test": {"timeout": timeout}}), "ConfigMap")
    (text,) = (each["data"]["job.yaml"] for each in found if "job.yaml" in each["data"])
    job = yaml.safe_load(text)
    assert job["spec"]["runPolicy"]["activeDeadlineSeconds"] == seconds
    assert validate_manifest(job) == []
    for role in job["spec"]["pytorchReplicaSpecs"].values():
        restricted = LevelVersion(Level.RESTRICTED)
        assert find_violations({}, role["template"]["spec"], restricted) == []


@each_values
def test_ports_have_protocols(values: Manifest) -> None:
    """Kubernetes 1.20 refuses to apply lists without all of their keys on the server side."""
    found = render(values)
    services = [port for each in of_kind(found, "Service") for port in each["spec"]["ports"]]
    containers = [c for _, _, spec in pods(found) for c in spec["containers"]]
    for port in [*services, *(port for each in containers for port in each.get("ports", []))]:
        assert port["protocol"] == "TCP"


@each_values
def test_pods_meet_the_restricted_profile(values: Manifest) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards, "restricted"."""
    for _, _, spec in pods(render(values)):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        for volume in spec.get("volumes", []):
            allowed = {"name", "configMap", "persistentVolumeClaim", "emptyDir", "secret"}
            assert not volume.keys() - allowed
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}


def images(values: Manifest) -> set[str]:
    """The images of all containers."""
    return {spec["containers"][0]["image"] for _, _, spec in pods(render(values))}


def test_the_image_can_come_from_a_mirror() -> None:
    metadata = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert images({}) == {f"gangline:{metadata['appVersion']}"}
    assert images(VALUES["mirror"]) == {f"mirror.example/team/gangline:{metadata['appVersion']}"}
    assert images(VALUES["digest"]) == {f"gangline@sha256:{'a' * 64}"}
    assert all(
        spec["imagePullSecrets"] == [{"name": "mirror"}]
        for _, _, spec in pods(render(VALUES["mirror"]))
    )


def test_every_crd_stays_when_the_release_is_uninstalled() -> None:
    found = of_kind(render({}, crds=True), CRD)
    assert {each["metadata"]["name"] for each in found} == {
        each["metadata"]["name"]
        for file in (*(DEPLOY / "crds").glob("*.yaml"), *(DEPLOY / "jobset").iterdir())
        for each in loaded(without_specs(file.read_text()))
    }
    for each in found:
        assert each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_crds_of_others_can_be_left_to_them() -> None:
    left = render_without_helm({"crds": {"skip": ["pytorchjobs.kubeflow.org"]}})
    names = {identity(each) for each in of_kind(left, CRD)}
    every = {identity(each) for each in of_kind(render_without_helm({}), CRD)}
    assert every - names == {(CRD, "", "pytorchjobs.kubeflow.org")}


@pytest.mark.parametrize(
    ("values", "served", "installed"),
    [({}, (), True), ({}, ("jobset.x-k8s.io/v1alpha2",), False), ({"kinds": ["TFJob"]}, (), False)],
)
def test_jobset_is_defined_where_trainjob_is_and_no_other_definition(
    values: Manifest, served: tuple[str, ...], installed: bool
) -> None:
    capabilities = ClusterCapabilities(frozenset(served))
    values = {"scheduler": {"enabled": False}, **values}
    found = render_without_helm(values, capabilities=capabilities)
    names = {each["metadata"]["name"] for each in of_kind(found, CRD)}
    assert ("jobsets.jobset.x-k8s.io" in names) is installed


def test_it_knows_the_kinds_of_the_program() -> None:
    for kind in JOB_KINDS:
        found = render_without_helm({"kinds": [kind.identity], "scheduler": {"enabled": False}})
        granted = {right[1:3] for right in rights(found, "operator") if right[3] == "delete"}
        resource = kind.resource
        others = {(each.resource.group, each.resource.plural) for each in JOB_KINDS}
        assert granted & others == {(resource.group, resource.plural)}
        crds = {each["metadata"]["name"] for each in of_kind(found, CRD)}
        jobs = {f"{plural}.{group}" for group, plural in others}
        assert crds & jobs == {f"{resource.plural}.{resource.group}"}
        assert ("scaleplans.elastic.iml.github.io" in crds) == (kind.identity == "ElasticJob")
        runtimes = "clustertrainingruntimes.trainer.kubeflow.org"
        assert (runtimes in crds) == (kind.identity == "TrainJob")


def rights(manifests: list[Manifest], component: str = "") -> set[tuple[str, ...]]:
    """(resource name, group, resource, verb) of the rights of a component's account."""
    return {
        (name, group, resource, verb)
        for each in of_kind(manifests, "Role", "ClusterRole")
        if each["metadata"]["name"].startswith(f"gangline-{component}")
        for rule in each["rules"]
        for name in rule.get("resourceNames", [""])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@each_values
def test_it_is_rendered_without_helm_as_by_helm(values: Manifest) -> None:
    release = ReleaseSettings(name="train", namespace=NAMESPACE, service="Helm")
    ours = render_without_helm(values | NO_CRDS, release)
    theirs = [
        each
        for each in render(values)
        if each["metadata"].get("annotations", {}).get("helm.sh/hook") != "test"
    ]
    assert {identity(each): each for each in ours} == {identity(each): each for each in theirs}


def test_crds_are_rendered_without_helm_as_by_helm() -> None:
    skipped = "elasticjobs.elastic.iml.github.io"
    values = {"kinds": ["ElasticJob"], "crds": {"volcano": False, "skip": [skipped]}}
    ours = of_kind(render_without_helm(values), CRD)
    names = [identity(each) for each in ours]
    assert names == [identity(each) for each in of_kind(render(values, crds=True), CRD)]
    # A short one as a whole.
    text = next(text for name, text in texts(json.dumps(values)).items() if "/crds" in name)
    (theirs,) = [
        each
        for document in text.split("\n---\n")
        if "name: scaleplans." in document
        for each in loaded(document)
    ]
    assert theirs in ours


def test_with_namespaces_only_nodes_are_read_in_the_whole_cluster() -> None:
    values = {
        "namespaces": ["a", "b"],
        "scheduler": {"enabled": False},
        "webhook": {"enabled": False},
    }
    found = render(values)
    runtimes = ("", "trainer.kubeflow.org", "clustertrainingruntimes")
    assert rights(of_kind(found, "ClusterRole")) == {
        ("", "", "nodes", "list"),
        ("", "", "nodes", "watch"),
        (*runtimes, "list"),
        (*runtimes, "watch"),
    }
    namespaces = {each["metadata"]["namespace"] for each in of_kind(found, "Role")}
    assert namespaces == {"a", "b", NAMESPACE}
    least = {"readNodes": False, "readClusterRuntimes": False}
    assert not of_kind(render(values | {"operator": least}), "ClusterRole")


def test_reports_of_progress_need_one_right_in_the_whole_cluster() -> None:
    found = render({"webhook": {"progress": True}, "namespaces": ["a"]} | NO_CRDS)
    with_reports = rights(found, "operator") - rights(
        render({"namespaces": ["a"]} | NO_CRDS), "operator"
    )
    assert with_reports == {("", "authentication.k8s.io", "tokenreviews", "create")}


def test_kinds_that_are_not_run_need_no_rights() -> None:
    found = render({"kinds": ["PyTorchJob"], "scheduler": {"enabled": False}})
    granted = {right[2] for right in rights(found, "operator") if not right[0]}
    assert not {"mpijobs", "scaleplans", "pods/exec", "roles", "serviceaccounts"} & granted


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"operator": {"replica": 2}}, "replica"),
        ({"image": {"pullPolicy": "always"}}, "pullPolicy"),
        ({"schedular": {"enabled": False}}, "schedular"),
        ({"operator": {"replicas": 0}}, "replicas"),
        ({"kinds": ["PytorchJob"]}, "PyTorchJob"),
        ({"crds": {"skip": ["PyTorchJob"]}}, "/crds/skip/0"),
        ({"webhook": {"queueAccess": True}}, "webhook.failurePolicy"),
        ({"metrics": {"serviceMonitor": True}}, "metrics.serviceMonitor"),
        ({"metrics": {"podMonitor": True}}, "metrics.podMonitor"),
        ({"metrics": {"prometheusRules": True}}, "metrics.prometheusRules"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values: Manifest, named: str) -> None:
    with pytest.raises(helm.HelmError, match=named):
        render(values)


def test_helm_and_gangline_deploy_need_the_same_version_of_kubernetes() -> None:
    metadata = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert metadata["kubeVersion"] == f">=1.{LOWEST_MINOR}.0-0"


def test_every_value_is_in_the_schema_and_described() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(value: Any, described: Any, path: str) -> None:
        if described.get("additionalProperties") is not False:
            return
        known = described["properties"]
        assert value.keys() - {"global"} == known.keys() - {"global"}, path
        for name, each in value.items():
            if isinstance(each, dict) and each:
                compare(each, known[name], f"{path}.{name}")

    compare(values, schema, "")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "gangline-initializer:"),
        ({"image": {"registry": "mirror.example/team/", "tag": "1"}},
         "mirror.example/team/gangline-initializer:1"),
        ({"runtimes": {"initializerImage": "own.example/fetch:2"}}, "own.example/fetch:2"),
    ],
)  # fmt: skip
def test_initializers_run_the_image_beside_that_of_the_components(
    given: Manifest, expected: str
) -> None:
    images = {
        container["image"]
        for each in render(given)
        if each["kind"] == "ClusterTrainingRuntime"
        for job in each["spec"]["template"]["spec"]["replicatedJobs"]
        for container in job["template"]["spec"]["template"]["spec"]["containers"]
        if container["name"].endswith("-initializer")
    }
    [image] = images
    assert image.startswith(expected)


@pytest.mark.parametrize("impersonates", [False, True])
def test_dashboard_writes_nothing_but_events_and_impersonates_only_if_allowed(
    impersonates: bool,
) -> None:
    values = {"dashboard": {"enabled": True, "impersonation": impersonates}, "namespaces": ["a"]}
    rules = [
        (role["kind"], resource, verb)
        for role in render(values)
        if role["kind"] in {"Role", "ClusterRole"} and "dashboard" in role["metadata"]["name"]
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    writes = {rule for rule in rules if rule[2] not in {"get", "list", "watch"}}
    events = {("Role", "events", "create"), ("Role", "events", "patch")}
    users = {("ClusterRole", name, "impersonate") for name in ("users", "groups")}
    assert writes == events | (users if impersonates else set())
    assert ("Role", "pytorchjobs", "watch") in rules
    assert ("ClusterRole", "pods", "list") not in rules
