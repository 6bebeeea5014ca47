"""The job kinds for property tests, with a common interface."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gangline.operator.frameworks.elastic.framework import ElasticFramework
from gangline.operator.frameworks.jax import JaxFramework
from gangline.operator.frameworks.kubeflow_paddle import KubeflowPaddleFramework
from gangline.operator.frameworks.mindspore import MindSporeFramework
from gangline.operator.frameworks.mpi.framework import MPIFramework
from gangline.operator.frameworks.paddle.framework import PaddleFramework
from gangline.operator.frameworks.pytorch import PyTorchFramework
from gangline.operator.frameworks.tensorflow import TensorFlowFramework
from gangline.operator.frameworks.xgboost import XGBoostFramework
from gangline.operator.model.framework import Framework
from unit.operator.train_jobs import TrainFrameworkOfTests


@dataclass(frozen=True)
class KindUnderTest:
    """How to write a job of one kind."""

    framework: Framework
    specs: str
    """The field of the specification that holds the roles; empty: they are its own fields."""
    roles: tuple[tuple[str, int], ...]
    """A usual set of roles with their replicas, without the one that is scaled."""
    scaled: str = "Worker"
    restart_in_template: bool = False
    version: str = ""
    """A version other than the one of storage."""

    @property
    def name(self) -> str:
        identity = self.framework.kind.identity
        return f"{identity}.{self.version}" if self.version else identity

    @property
    def api_version(self) -> str:
        kind = self.framework.kind
        return f"{kind.resource.group}/{self.version}" if self.version else kind.api_version

    @property
    def all_roles(self) -> tuple[str, ...]:
        return (*(role for role, _ in self.roles), self.scaled)

    def job(
        self,
        workers: int,
        *,
        restart: str | None = None,
        annotations: Mapping[str, str] | None = None,
        **run_policy: Any,
    ) -> dict[str, Any]:
        """A job with its usual roles and this number of workers."""
        counts = {**dict(self.roles), self.scaled: workers}
        replicas: dict[str, Any] = {
            role: self._replicas(count, restart) for role, count in counts.items()
        }
        kind = self.framework.kind
        if self.restart_in_template:
            policies = {"All": "Always", "Running": "OnCompletion", "None": "Never"}
            clean = policies.get(run_policy.pop("cleanPodPolicy", None) or "", "")
            replicas["cleanPodPolicy"] = clean
        return {
            "apiVersion": self.api_version,
            "kind": kind.kind,
            "metadata": {
                "name": "train",
                "namespace": "team",
                "uid": "job-uid",
                "annotations": dict(annotations or {}),
            },
            "spec": {
                "runPolicy": run_policy,
                **({self.specs: replicas} if self.specs else replicas),
            },
        }

    def scale(self, written: dict[str, Any], workers: int) -> dict[str, Any]:
        """The same job with another number of workers."""
        spec = written["spec"]
        replicas = spec[self.specs] if self.specs else spec
        changed = {**replicas, self.scaled: {**replicas[self.scaled], "replicas": workers}}
        return {**written, "spec": {**spec, self.specs: changed} if self.specs else changed}

    def _replicas(self, count: int, restart: str | None) -> dict[str, Any]:
        kind = self.framework.kind
        spec: dict[str, Any] = {"containers": [{"name": kind.container, "image": "train:1"}]}
        if self.restart_in_template:
            policy = (
                {"restartPolicy": restart} if restart in {"Always", "OnFailure", "Never"} else {}
            )
            return {"replicas": count, "template": {"spec": {**spec, **policy}}}
        own = {"restartPolicy": restart} if restart else {}
        return {"replicas": count, "template": {"spec": spec}, **own}


_MAKERS: tuple[Callable[[], KindUnderTest], ...] = (
    lambda: KindUnderTest(PyTorchFramework(), "pytorchReplicaSpecs", (("Master", 1),)),
    lambda: KindUnderTest(TensorFlowFramework(), "tfReplicaSpecs", (("Chief", 1), ("PS", 1))),
    lambda: KindUnderTest(MindSporeFramework(), "msReplicaSpecs", (("Scheduler", 1), ("PS", 1))),
    lambda: KindUnderTest(PaddleFramework(), "", (("ps", 1),), "worker", restart_in_template=True),
    lambda: KindUnderTest(ElasticFramework(), "replicaSpecs", (("ps", 1), ("chief", 1)), "worker"),
    lambda: KindUnderTest(MPIFramework(), "mpiReplicaSpecs", (("Launcher", 1),)),
    lambda: KindUnderTest(MPIFramework(), "mpiReplicaSpecs", (("Launcher", 1),), version="v2beta1"),
    lambda: KindUnderTest(JaxFramework(), "jaxReplicaSpecs", ()),
    lambda: KindUnderTest(XGBoostFramework(), "xgbReplicaSpecs", (("Master", 1),)),
    lambda: KindUnderTest(KubeflowPaddleFramework(), "paddleReplicaSpecs", (("Master", 1),)),
    lambda: KindUnderTest(TrainFrameworkOfTests(), "", (), "node"),
)

KINDS = {kind.name: kind for kind in (make() for make in _MAKERS)}
