"""A plan as plain data, with the unit in each name, for JSON and YAML."""

from dataclasses import asdict
from typing import Any

from gangline.sizing.calibration import Range
from gangline.sizing.goals import host_memory_bytes
from gangline.sizing.plan import LayoutChoice, Plan
from gangline.sizing.search import Candidate
from gangline.sizing.traced import TracedModel
from gangline.sizing.transformer import TransformerModel


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return everything that a plan says."""
    request = plan.request
    return {
        "fits": plan.fits,
        "model": {
            "parameters": plan.parameters,
            "sample_tokens": request.model.sample_tokens,
            **_shape(request.model),
        },
        "training": {
            "tokens": plan.tokens,
            "global_batch_samples": plan.global_batch,
            "precision": request.precision.value,
            "optimizer": request.optimizer.value,
            "adapter": request.adapter or None,
            "offload": request.offload,
            "model_flops": plan.model_flops,
            "compute_optimal_tokens": plan.compute_optimal_tokens,
        },
        "hardware": {
            "device": request.device.name,
            "devices": request.devices,
            "nodes": plan.nodes,
            "node_devices": plan.node_devices,
            "peak_flops_per_s": _peak(plan),
            "memory_bytes": request.device.memory_bytes,
            "efficiency": _range(plan.efficiency),
        },
        "layouts": [_choice(choice) for choice in plan.choices],
        "nearest": _candidate(plan.nearest) if plan.nearest else None,
        "fitting_devices": plan.fitting_devices,
        "checkpoints": asdict(plan.checkpoints),
        "data_bytes_per_s": plan.host.data_bytes_per_s if plan.host else None,
        "host": _host(plan),
        "runs": None if plan.typical_s is None else request.runs.value,
        "typical_training_s": _range(plan.typical_s) if plan.typical_s else None,
        "node_memory_bytes": host_memory_bytes(plan) if plan.fits else None,
        "cost": _range(plan.cost) if plan.cost else None,
        "misses": list(plan.misses),
        "assumptions": list(plan.assumptions),
    }


def _peak(plan: Plan) -> float:
    states = plan.request.states
    return plan.request.device.peak(states.element, fp8=states.fp8)


def _shape(model: TransformerModel | TracedModel) -> dict[str, Any]:
    if isinstance(model, TracedModel):
        return {"traced_coverage": model.coverage, "uncounted_operators": dict(model.uncounted)}
    shape = model.shape
    return {
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads or shape.heads,
        "ffn": shape.mlp_width,
        "vocab": shape.vocab,
    }


def _host(plan: Plan) -> dict[str, Any] | None:
    if plan.host is None:
        return None
    return {
        "device_cpus": plan.host.device_cpus,
        "node_cpus": plan.host.device_cpus * plan.node_devices,
        "device_loader_workers": plan.host.loader_workers,
        "sample_cpu_s": plan.host.sample_cpu_s,
    }


def _choice(choice: LayoutChoice) -> dict[str, Any]:
    return {
        **_candidate(choice.candidate),
        "step_s": _range(choice.step_s),
        "tokens_per_s": _range(choice.tokens_per_s),
        "model_flops_utilisation": choice.utilisation,
        "training_s": _range(choice.training_s),
        "limited_by": choice.limited_by,
        "node_bandwidth_needed_bytes_per_s": choice.bandwidth_needed,
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    layout, memory, step = candidate.layout, candidate.memory, candidate.step
    return {
        "layout": layout.title,
        "degrees": {
            "data": layout.data,
            "tensor": layout.tensor,
            "pipeline": layout.pipeline,
            "virtual": layout.virtual,
            "context": layout.context,
            "expert": layout.expert,
        },
        "sharding": layout.sharding.title,
        "recompute": layout.recompute_title,
        "micro_batch_samples": layout.micro_batch,
        "memory_bytes": {**asdict(memory), "total": memory.total, "high": memory.high},
        "step_parts_s": asdict(step),
    }


def _range(value: Range) -> dict[str, float]:
    return {"p10": value.low, "p50": value.middle, "p90": value.high}
