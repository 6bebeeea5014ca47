"""Builders for ElasticJobs, and a simulated cluster in which they run."""

from typing import Any

from msgspec.structs import replace

from gangline.operator.frameworks.elastic.framework import ElasticFramework
from gangline.operator.model.job import NormalizedJob
from gangline.operator.model.plan import ReconcilePlan, TargetKind
from gangline.operator.model.replicas import ObservedPod
from unit.operator.builders import stored
from unit.operator.world import World

MASTER = "elasticjob-train-dlrover-master"


def role(count: int | None = None, command: str = "train", **fields: Any) -> dict[str, Any]:
    """A replica spec; ``memory`` is its container's limit."""
    memory = fields.pop("memory", None)
    pod = fields.pop("pod", {})
    container: dict[str, Any] = {"name": "main", "image": "train:1", "command": [command]}
    if memory:
        container["resources"] = {"limits": {"memory": memory}, "requests": {"memory": memory}}
    counted = {} if count is None else {"replicas": count}
    return {**counted, "template": {"spec": {"containers": [container], **pod}}, **fields}


def manifest(roles: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """An ElasticJob manifest; ``annotations`` and ``labels`` are the job's own."""
    meta = {key: spec.pop(key) for key in ("annotations", "labels", "name") if key in spec}
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "train", "namespace": "team", "uid": "job-uid", **meta},
        "spec": {
            "distributionStrategy": "AllreduceStrategy",
            "replicaSpecs": {
                name: role(given) if isinstance(given, int) else given
                for name, given in roles.items()
            },
            "runPolicy": {},
            **spec,
        },
    }


def read(written: dict[str, Any], **options: Any) -> NormalizedJob:
    """The job in the common form; it must be valid."""
    reading = ElasticFramework(**options).read(stored(written))
    assert not reading.spec_errors, reading.spec_errors
    return reading.job


class ElasticWorld(World):
    """A job whose pods have short names: ``worker-3``, ``master-0``."""

    def __init__(self, workers: Any = 2, *, strategy: str = "AllreduceStrategy", **spec: Any):
        roles = spec.pop("roles", {})
        written = manifest({"worker": workers, **roles}, distributionStrategy=strategy, **spec)
        assert read(written)
        super().__init__(written)

    def __getitem__(self, short: str) -> ObservedPod:
        return self.pods[full_name(short)]

    @property
    def names(self) -> list[str]:
        """The pods that exist and are not terminating."""
        return sorted(short_name(pod.name) for pod in self.pods.values() if not pod.is_terminating)

    @property
    def phase(self) -> str:
        fields = self.decide().kind_status
        assert fields is not None
        return str(fields["phase"])

    @property
    def message(self) -> str:
        """The message of the latest condition."""
        return self.status.conditions[-1].message

    def up(self) -> "ElasticWorld":
        """All pods are created and start."""
        self.settle()
        self.start_all()
        self.settle()
        return self

    def break_(
        self,
        short: str,
        code: int | None = 137,
        *,
        reason: str = "",
        of_pod: str = "",
        node: str = "",
    ) -> "ElasticWorld":
        """A running pod fails, for a container's or the pod's reason; the operator reacts."""
        pod = self[short]
        self.start(pod)
        self.fail(self[short], code)
        pod = self[short]
        states = tuple(
            replace(
                container_status,
                state=replace(container_status.state, terminated=replace(end, reason=reason)),
            )
            for container_status in pod.status.container_statuses
            if (end := container_status.state.terminated)
        )
        status = replace(pod.status, reason=of_pod, container_statuses=states)
        place = replace(pod.spec, node_name=node or pod.spec.node_name)
        self.pods[pod.name] = replace(pod, status=status, spec=place)
        return self.after()

    def take(self, short: str) -> "ElasticWorld":
        """A user deletes a pod; the operator reacts before it disappears."""
        self.remove_pod(self[short])
        return self.after()

    def vanish(self, short: str) -> "ElasticWorld":
        """A pod is deleted by force, without a termination that the operator could observe."""
        del self.pods[full_name(short)]
        return self.after()

    def after(self) -> "ElasticWorld":
        """The operator works, old pods disappear, delays pass."""
        self.settle()
        self.wait(700)
        self.settle()
        self.finish_terminating()
        self.settle()
        self.start_all()
        self.settle()
        return self

    def end(self, *short: str) -> "ElasticWorld":
        """Pods succeed."""
        for name in short:
            self.succeed(self[name])
        self.settle()
        return self

    def made(self, decision: ReconcilePlan, target: TargetKind = TargetKind.POD) -> dict[str, Any]:
        """The created object, by short name."""
        return {
            short_name(creation.name): creation.manifest
            for creation in decision.creations
            if creation.target is target
        }


def full_name(short: str) -> str:
    """The name of ``worker-3`` in the cluster."""
    kind, _, number = short.rpartition("-")
    return f"{MASTER}-{number}" if kind == "master" else f"train-edljob-{short}"


def short_name(name: str) -> str:
    """The reverse; other names are unchanged."""
    if name.startswith(f"{MASTER}-"):
        return f"master-{name.removeprefix(f'{MASTER}-')}"
    return name.removeprefix("train-edljob-")


def variables(pod: dict[str, Any]) -> dict[str, str]:
    """The plain variables of a pod's first container."""
    return {
        variable["name"]: variable.get("value", "")
        for variable in pod["spec"]["containers"][0]["env"]
    }
