"""The ClusterTrainingRuntimes that Gangline ships, with the names of upstream's.

``deploy/runtimes`` contains them as files (written by ``tools/generate_deploy.py``), and the
embedded cluster creates those that it lacks when it starts. On the embedded cluster images are
names only.
"""

from importlib.metadata import version
from typing import Any

from gangline.api.jobs.training_runtime import (
    ANCESTOR_LABEL,
    COMPLETE,
    DATASET_INITIALIZER,
    FAIL_JOB,
    FRAMEWORK_LABEL,
    GROUP,
    INITIALIZER_VOLUME,
    JAX,
    LAUNCHER,
    MODEL_INITIALIZER,
    NODE,
    READY,
    TORCH,
    TRAINER,
    VERSION,
    WORKSPACE,
    XGBOOST,
)
from gangline.api.trainer.merge import Json

_TRAINER_IMAGES = "ghcr.io/kubeflow/trainer"
_SSH_PATH = "/home/mpiuser/.ssh"
_SSH_PORT = 2222
_USER = 1000
_INITIALIZER_USER = 65532
"""That of Gangline's image, which must be able to write the claim."""
_WRONG_SETTING: Json = {"operator": "In", "values": [2]}
"""How ``gangline initialize`` ends if a further attempt would fail too."""

IMAGES = {
    TORCH: "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime",
    JAX: "nvcr.io/nvidia/jax:25.10-py3",
    XGBOOST: f"{_TRAINER_IMAGES}/xgboost-runtime:v2.3.0",
    "deepspeed": f"{_TRAINER_IMAGES}/deepspeed-runtime:v2.3.0",
    "mlx": f"{_TRAINER_IMAGES}/mlx-runtime:v2.3.0",
    "torchtune": f"{_TRAINER_IMAGES}/torchtune-trainer:v2.3.0",
}


def builtin_runtimes() -> list[Json]:
    return [
        *(
            _runtime(f"{name}-distributed", name, {name: {}}, {"replicatedJobs": [_node(name)]})
            for name in (TORCH, JAX, XGBOOST)
        ),
        *(_mpi_runtime(name) for name in ("deepspeed", "mlx")),
        *(_torchtune_runtime(model) for model in ("llama3.2-1b", "llama3.2-3b", "qwen2.5-1.5b")),
    ]


def _runtime(name: str, framework: str, policy: Json, job_set: Json) -> Json:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "ClusterTrainingRuntime",
        "metadata": {
            "name": name,
            "labels": {FRAMEWORK_LABEL: framework, "app.kubernetes.io/part-of": "gangline"},
        },
        "spec": {"mlPolicy": {"numNodes": 1, **policy}, "template": {"spec": job_set}},
    }


def _job(
    name: str,
    pod: Json,
    step: str = "",
    depends_on: tuple[Json, ...] = (),
    failures: Json | None = None,
) -> Json:
    labels = {"metadata": {"labels": {ANCESTOR_LABEL: step}}} if step else {}
    waits = {"dependsOn": list(depends_on)} if depends_on else {}
    rules = {"podFailurePolicy": failures} if failures else {}
    spec = {**rules, "template": {"spec": pod}}
    # With the server's defaults: `kubectl apply` would send a list without them again each time.
    defaults = {"groupName": "default", "replicas": 1}
    return {"name": name, **defaults, **waits, "template": {**labels, "spec": spec}}


def _node(framework: str, **fields: Any) -> Json:
    container = {"name": NODE, "image": IMAGES[framework], **fields}
    return _job(NODE, {"containers": [container]}, TRAINER)


def _mpi_runtime(framework: str) -> Json:
    image = IMAGES[framework]
    rights = {"securityContext": {"runAsUser": _USER, "fsGroup": _USER}}
    server = {
        "name": NODE,
        "image": image,
        "command": ["/usr/sbin/sshd"],
        "args": ["-De", "-f", "/home/mpiuser/.sshd_config"],
        "readinessProbe": {"tcpSocket": {"port": _SSH_PORT}, "initialDelaySeconds": 5},
    }
    launcher = {"name": NODE, "image": image}
    jobs = [
        _job(NODE, {"containers": [server], **rights}),
        _job(
            LAUNCHER,
            {"containers": [launcher], **rights},
            TRAINER,
            ({"name": NODE, "status": READY},),
        ),
    ]
    mpi = {
        "numProcPerNode": 1,
        "mpiImplementation": "OpenMPI",
        "sshAuthMountPath": _SSH_PATH,
        "runLauncherAsNode": True,
    }
    job_set = {
        "network": {"publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [LAUNCHER]},
        "replicatedJobs": jobs,
    }
    return _runtime(f"{framework}-distributed", framework, {"mpi": mpi}, job_set)


def _torchtune_runtime(model: str) -> Json:
    mount = {"volumeMounts": [{"name": INITIALIZER_VOLUME, "mountPath": WORKSPACE}]}
    family = "Llama-3.2" if model.startswith("llama") else "Qwen2.5"
    size = model.rpartition("-")[2].upper()
    sources = {
        DATASET_INITIALIZER: "hf://tatsu-lab/alpaca",
        MODEL_INITIALIZER: f"hf://{'meta-llama' if family[0] == 'L' else 'Qwen'}/{family}-{size}"
        "-Instruct",
    }
    initializers = [
        _job(
            step,
            {
                "containers": [
                    {
                        "name": step,
                        "image": f"gangline-initializer:{version('gangline')}",
                        "command": ["gangline", "initialize", step.partition("-")[0]],
                        "env": [{"name": "STORAGE_URI", "value": source}],
                        **mount,
                    }
                ],
                "securityContext": {"fsGroup": _INITIALIZER_USER},
                "restartPolicy": "Never",
            },
            step,
            failures={"rules": [{"action": FAIL_JOB, "onExitCodes": _WRONG_SETTING}]},
        )
        for step, source in sources.items()
    ]
    trainer = {
        "name": NODE,
        "image": IMAGES["torchtune"],
        "command": ["tune", "run"],
        "args": [
            f"output_dir={WORKSPACE}/output",
            f"tokenizer.path={WORKSPACE}/model/original/tokenizer.model"
            if family[0] == "L"
            else f"tokenizer.path={WORKSPACE}/model/vocab.json",
            f"checkpointer.checkpoint_dir={WORKSPACE}/model",
        ],
        "resources": {"limits": {"nvidia.com/gpu": 2}},
        **mount,
    }
    waits = tuple({"name": step, "status": COMPLETE} for step in sources)
    claim = {
        "metadata": {"name": INITIALIZER_VOLUME},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "20Gi"}},
        },
    }
    job_set = {
        "volumeClaimPolicies": [{"templates": [claim]}],
        "replicatedJobs": [*initializers, _job(NODE, {"containers": [trainer]}, TRAINER, waits)],
    }
    return _runtime(f"torchtune-{model}", "torchtune", {TORCH: {}}, job_set)
