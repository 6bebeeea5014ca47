"""The examples of upstream repositories, as facts: kinds, roles, counts and fields.

No package of Python or Debian contains the manifests themselves. Each row states what one of them
sets; names, images and scripts are ours.
"""

from typing import Any

from gangline.api.jobs.training_runtime import ANCESTOR_LABEL, FRAMEWORK_LABEL

Manifest = dict[str, Any]

GPU: Manifest = {"limits": {"nvidia.com/gpu": 1}}
CPU: Manifest = {"limits": {"cpu": 1, "memory": "2Gi"}}
PER_NODE: Manifest = {
    "requests": {"cpu": "2", "memory": "4Gi"},
    "limits": {"cpu": "4", "memory": "8Gi"},
}
CLAIM: Manifest = {"name": "training", "persistentVolumeClaim": {"claimName": "events"}}
MEMORY: Manifest = {"name": "memory", "emptyDir": {"medium": "Memory"}}
RUNTIME: Manifest = {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime"}
TORCH_RUNTIME: Manifest = {**RUNTIME, "name": "torch-distributed"}


def role(container: str, replicas: int = 1, restart: str = "", **fields: Any) -> Manifest:
    """A role of one container; ``pod_*`` fields belong to its pod."""
    pod = {name[4:]: fields.pop(name) for name in list(fields) if name.startswith("pod_")}
    main = {"name": container, "image": "example:1", **fields}
    written: Manifest = {
        "replicas": replicas,
        "template": {"spec": {"containers": [main], **pod}},
    }
    return {**written, "restartPolicy": restart} if restart else written


def mount(name: str, path: str) -> Manifest:
    return {"volumeMounts": [{"name": name, "mountPath": path}]}


def job(kind: str, roles: str, spec: Manifest, version: str = "v1", **fields: Any) -> Manifest:
    """A job of the training operator or of the MPI operator."""
    return {
        "apiVersion": f"kubeflow.org/{version}",
        "kind": kind,
        "metadata": {"name": "example"},
        "spec": {roles: spec, **fields},
    }


def pytorch(master: Manifest | None, worker: Manifest, **fields: Any) -> Manifest:
    roles = {"Master": master, "Worker": worker} if master else {"Worker": worker}
    return job("PyTorchJob", "pytorchReplicaSpecs", roles, **fields)


def mpi(launcher: Manifest, worker: Manifest, version: str = "v1", **fields: Any) -> Manifest:
    roles = {"Launcher": launcher, "Worker": worker}
    return job("MPIJob", "mpiReplicaSpecs", roles, version, **fields)


def xgboost(container: str, pull: str) -> Manifest:
    ports = [{"name": "xgboostjob-port", "containerPort": 9991}]
    given: Manifest = {"ports": ports, "imagePullPolicy": pull, "args": ["--job_type=Train"]}
    roles = {
        "Master": role(container, 1, "Never", **given),
        "Worker": role(container, 2, "ExitCode", **given),
    }
    return job("XGBoostJob", "xgbReplicaSpecs", roles)


def paddle(**spec: Any) -> Manifest:
    return {
        "apiVersion": "batch.paddlepaddle.org/v1",
        "kind": "PaddleJob",
        "metadata": {"name": "example"},
        "spec": spec,
    }


def train_job(ref: Manifest, **spec: Any) -> Manifest:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "example"},
        "spec": {"runtimeRef": ref, **spec},
    }


def runtime(
    kind: str, policy: Manifest, jobs: list[Manifest], claim: str = "", **spec: Any
) -> Manifest:
    job_set: Manifest = {"replicatedJobs": jobs}
    if claim:
        size = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        templates = [{"metadata": {"name": claim}, "spec": size}]
        job_set["volumeClaimPolicies"] = [{"templates": templates}]
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": kind,
        "metadata": {"name": "example", "labels": {FRAMEWORK_LABEL: "torch"}},
        "spec": {
            "mlPolicy": {"numNodes": 1, **policy},
            "template": {"spec": job_set},
            **spec,
        },
    }


def step(name: str, ancestor: str, container: Manifest | None = None, **fields: Any) -> Manifest:
    """A replicated job of a runtime."""
    main = {"name": "node" if ancestor == "trainer" else name, "image": "example:1"}
    pod = {"containers": [{**main, **(container or {})}]}
    labels = {"labels": {ANCESTOR_LABEL: ancestor}}
    return {
        "name": name,
        **fields,
        "template": {"metadata": labels, "spec": {"template": {"spec": pod}}},
    }


def steps(container: Manifest | None = None, claim: str = "") -> Manifest:
    """A runtime whose nodes start after an initializer."""
    name = "dataset-initializer"
    after = {"dependsOn": [{"name": name, "status": "Complete"}]}
    jobs = [step(name, name, container, replicas=1), step("node", "trainer", **after)]
    return runtime("TrainingRuntime", {"torch": {}}, jobs, claim)


NODE = step("node", "trainer")
ELASTIC: Manifest = {"rdzvBackend": "c10d", "minReplicas": 1, "maxRestarts": 100}
UTILIZATION = {"type": "Utilization", "averageUtilization": 80}
SPOT = {"key": "training", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
NODE_PATCH: Manifest = {
    "serviceAccountName": "training-sa",
    "nodeSelector": {"node-type": "training"},
    "tolerations": [SPOT],
}
REPLICATED_JOB = {"name": "node", "template": {"spec": {"template": {"spec": NODE_PATCH}}}}
METADATA = {
    "labels": {"team": "ml-platform"},
    "annotations": {"prometheus.io/scrape": "true"},
}
PATCH: Manifest = {
    "manager": "example.io/platform-team",
    "trainingRuntimeSpec": {
        "template": {"metadata": METADATA, "spec": {"replicatedJobs": [REPLICATED_JOB]}}
    },
}
SHARED_MEMORY: Manifest = {"pod_volumes": [MEMORY], **mount("memory", "/dev/shm")}
QUIET: Manifest = {"pod_enableServiceLinks": False, "pod_automountServiceAccountToken": False}
SERVER: Manifest = {
    "command": ["/usr/sbin/sshd"],
    "args": ["-De", "-f", "/home/mpiuser/.sshd_config"],
    "securityContext": {"runAsUser": 1000},
    "resources": CPU,
}

EXAMPLES: dict[str, Manifest] = {
    "trainer/runtime-patches": train_job(
        TORCH_RUNTIME,
        suspend=True,
        trainer={
            "numNodes": 2,
            "image": "example:1",
            "command": ["torchrun"],
            "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}],
            "resourcesPerNode": PER_NODE,
        },
        runtimePatches=[PATCH],
    ),
    "trainer/volcano, runtime": runtime(
        "ClusterTrainingRuntime", {"torch": {}}, [NODE], podGroupPolicy={"volcano": {}}
    ),
    "trainer/own runtime of an earlier release": runtime(
        "TrainingRuntime",
        {"torch": {"numProcPerNode": "auto"}},
        [step("node", "trainer", {"resources": PER_NODE})],
    ),
    "trainer/steps, runtime": steps(mount("initializer", "/workspace"), claim="initializer"),
    "trainer/grpo": train_job(
        {**RUNTIME, "name": "grpo-distributed"},
        initializer={
            "dataset": {"storageUri": "hf://trl-lib/tldr"},
            "model": {"storageUri": "hf://Qwen/Qwen2.5-0.5B-Instruct"},
        },
        trainer={
            "numNodes": 1,
            "resourcesPerNode": {"requests": {"nvidia.com/gpu": 2}},
            "env": [{"name": "LEARNING_RATE", "value": "5e-7"}],
        },
    ),
    "training-operator/jax/cpu-demo": job(
        "JAXJob",
        "jaxReplicaSpecs",
        {"Worker": role("jax", 2, "OnFailure", command=["python3"], imagePullPolicy="Always")},
    ),
    "training-operator/mpi/tensorflow-mnist-elastic": mpi(
        role(
            "mpi-launcher",
            command=["horovodrun"],
            args=["-np", "2", "--host-discovery-script", "/etc/mpi/discover_hosts.sh"],
            resources=CPU,
        ),
        role("mpi-worker", 2, resources=CPU),
        slotsPerWorker=1,
        cleanPodPolicy="Running",
    ),
    "training-operator/paddle/simple-gpu": job(
        "PaddleJob",
        "paddleReplicaSpecs",
        {
            "Worker": role(
                "paddle",
                2,
                "OnFailure",
                command=["python"],
                args=["-m", "paddle.distributed.launch", "run_check"],
                ports=[{"containerPort": 37777, "name": "master"}],
                resources={"limits": {"nvidia.com/gpu": 2}},
                **SHARED_MEMORY,
            )
        },
    ),
    "training-operator/pytorch/mnist": pytorch(
        role("pytorch", 1, "OnFailure", args=["--backend", "mpi"], resources=GPU),
        role("pytorch", 1, "OnFailure", args=["--backend", "mpi"], resources=GPU),
    ),
    "training-operator/pytorch/elastic/imagenet": pytorch(
        None,
        role("pytorch", 2, "OnFailure", resources={"requests": {"cpu": 4}}),
        elasticPolicy={
            **ELASTIC,
            "maxReplicas": 3,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": UTILIZATION}}],
        },
    ),
    "training-operator/tensorflow/keras-API": job(
        "TFJob",
        "tfReplicaSpecs",
        {
            "Worker": role(
                "tensorflow",
                2,
                "Never",
                pod_volumes=[CLAIM],
                resources=GPU,
                **mount("training", "/t"),
            )
        },
        runPolicy={"cleanPodPolicy": "None"},
    ),
    "training-operator/xgboost/lightgbm": xgboost("xgboost", "Never"),
    "mpi-operator/v2beta1/pi": mpi(
        role("mpi-launcher", 1, "Never", command=["mpirun"], resources=CPU),
        role("mpi-worker", 2, "Never", **SERVER),
        "v2beta1",
        slotsPerWorker=1,
        sshAuthMountPath="/home/mpiuser/.ssh",
        runPolicy={
            "cleanPodPolicy": "Running",
            "ttlSecondsAfterFinished": 60,
            "backoffLimit": 0,
        },
    ),
    "mpi-operator/v2beta1/nccl-tests": mpi(
        role(
            "nccl",
            command=["/bin/bash", "-c"],
            securityContext={"privileged": True},
            pod_restartPolicy="OnFailure",
            **QUIET,
        ),
        role(
            "nccl",
            2,
            resources={"limits": {"nvidia.com/gpu": 8}},
            securityContext={"privileged": True},
            **QUIET,
            **SHARED_MEMORY,
        ),
        "v2beta1",
        slotsPerWorker=8,
        runPolicy={"cleanPodPolicy": "Running", "activeDeadlineSeconds": 666},
    ),
    "paddle-operator/wide_and_deep_service": paddle(
        intranet="Service",
        cleanPodPolicy="Never",
        withGloo=1,
        worker=role("paddle", 2),
        ps=role("paddle", 2),
    ),
}
"""Examples by their place upstream. ``steps`` mounts the claim that upstream's lacks."""

REFUSED: dict[str, tuple[Manifest, str]] = {
    "trainer/flux": (
        runtime("ClusterTrainingRuntime", {"flux": {}}, [NODE]),
        "spec.mlPolicy.flux",
    ),
    "trainer/steps, runtime": (
        steps(),
        "spec.template.spec.replicatedJobs[0].template.spec.template.spec"
        ".containers[dataset-initializer].volumeMounts",
    ),
}
"""Examples that are refused, each with the path of the only error."""
