"""The PyTorchJob of a plan, for ``gangline plan -o job``."""

from typing import TYPE_CHECKING, Any

from gangline.cli.render.output import serialize

if TYPE_CHECKING:
    from gangline.sizing.plan import Plan


def planned_job(plan: "Plan", name: str, image: str, command: tuple[str, ...]) -> str:
    """Return the manifest, with the layout that it is made for as a comment."""
    from gangline.sizing.goals.job_check import (
        has_known_loading,
        host_memory_bytes,
        node_cpus,
    )
    from gangline.sizing.goals.record import ANNOTATION, write_record

    best = plan.choices[0]
    request, layout = plan.request, best.candidate.layout
    per_node, nodes = plan.node_devices, plan.nodes
    host = plan.checkpoints.host_bytes_per_node
    container: dict[str, Any] = {
        "name": "pytorch",
        "image": image,
        "command": ["torchrun", *(command or ("train.py",))],
        "resources": {
            "limits": {
                "nvidia.com/gpu": per_node,
                "memory": f"{_gibibytes(host_memory_bytes(plan))}Gi",
            }
        },
    }
    if has_known_loading(plan):
        container["resources"]["requests"] = {"cpu": node_cpus(plan)}
    template = {"spec": {"containers": [container]}}
    replica = {"restartPolicy": "OnFailure", "template": template}
    specs = {"Master": {"replicas": 1, **replica}}
    if nodes > 1:
        specs["Worker"] = {"replicas": nodes - 1, **replica}
    manifest = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": name,
            "annotations": {
                "gangline.dev/shared-memory": f"{_gibibytes(host)}Gi",
                ANNOTATION: write_record(plan),
            },
        },
        "spec": {"nprocPerNode": str(per_node), "pytorchReplicaSpecs": specs},
    }
    notes = (
        f"{layout.title}: micro-batch {layout.micro_batch}, global batch {layout.global_batch}, "
        f"recompute {layout.recompute.value}, {request.precision.value} precision",
        f"{best.candidate.memory.total / 1e9:.0f} GB of {request.device.name}, "
        f"{best.step_s.middle:.3g} s a step",
    )
    return "".join(f"# {note}\n" for note in notes) + serialize(manifest, "yaml").rstrip("\n")


def _gibibytes(size: float) -> int:
    return max(-(-int(size) // 2**30), 1)
