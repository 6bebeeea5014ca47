"""TrainJobs for tests of the operator: the runtime is made from the job's own run policy."""

from dataclasses import replace
from typing import Any

import msgspec

from gangline.operator.frameworks.train.framework import KIND, TrainFramework
from gangline.operator.model.framework import ParsedJob, RuntimeCopy
from gangline.operator.model.job import RawJob

Manifest = dict[str, Any]


def runtime_copy(runtime: Manifest, *, stored: bool = True) -> RuntimeCopy:
    return RuntimeCopy(msgspec.json.encode(runtime), "1", is_stored=stored)


def a_runtime(
    *, restart: str = "OnFailure", backoff_limit: int | None = None, **policy: Any
) -> Manifest:
    """A runtime with a step that the nodes wait for."""
    limit = {} if backoff_limit is None else {"backoffLimit": backoff_limit}
    first = _replicated("prepare", "prepare", restart, limit)
    nodes = _replicated("node", "node", restart, limit)
    nodes["template"]["metadata"] = {
        "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    }
    nodes["dependsOn"] = [{"name": "prepare", "status": "Complete"}]
    return {
        "apiVersion": KIND.api_version,
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "own"},
        "spec": {
            "mlPolicy": {"torch": {}},
            "template": {"spec": {"replicatedJobs": [first, nodes], **policy}},
        },
    }


def _replicated(name: str, container: str, restart: str, limit: Manifest) -> Manifest:
    pod = {"containers": [{"name": container, "image": "train:1"}], "restartPolicy": restart}
    return {"name": name, "template": {"spec": {"template": {"spec": pod}, **limit}}}


class TrainFrameworkOfTests:
    """Reads TrainJobs whose ``spec.runPolicy`` and ``spec.node`` stand for runtime and trainer."""

    kind = KIND

    def read(self, stored: RawJob) -> ParsedJob:
        spec = msgspec.json.decode(stored.spec)
        policy, node = spec.get("runPolicy", {}), spec.get("node", {})
        restart = node.get("restartPolicy", "OnFailure")
        ttl = policy.get("ttlSecondsAfterFinished")
        runtime = a_runtime(
            restart=restart if restart in ("OnFailure", "Never") else "OnFailure",
            backoff_limit=policy.get("backoffLimit"),
            **({} if ttl is None else {"ttlSecondsAfterFinished": ttl}),
        )
        count = node.get("replicas", 1)
        nodes = max(1, count) if isinstance(count, int) else count
        own: Manifest = {"runtimeRef": {"name": "own"}, "trainer": {"numNodes": nodes}}
        for name in ("suspend", "activeDeadlineSeconds"):
            if policy.get(name) is not None:
                own[name] = policy[name]
        job = msgspec.structs.replace(stored, spec=msgspec.Raw(msgspec.json.encode(own)))
        parsed = TrainFramework().read_with_runtime(job, runtime_copy(runtime), is_known=True)
        # Without a limit in the run policy other kinds have none; a batch Job has six.
        limit = policy.get("backoffLimit")
        policy = replace(parsed.job.policy, backoff_limit=limit)
        roles = [replace(role, backoff_limit=None) for role in parsed.job.roles]
        return replace(parsed, job=replace(parsed.job, policy=policy, roles=roles))
