"""Assembles what advisers see of one job. Pure."""

from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from gangline.brain.advisers.view import ClusterView, Exposure, SimilarRuns, View
from gangline.brain.collection.live_facts import (
    device_peaks,
    ended_by_shortage,
    node_checks,
    rank_speeds,
    restart_seconds,
)
from gangline.brain.collection.observations import JobObservations
from gangline.brain.collection.server_use import ServerTable
from gangline.brain.evaluation.cluster_facts import exposure, of_nodes
from gangline.brain.facts.records import MemorySample, Run
from gangline.brain.publication.items import remaining_s
from gangline.sizing.hardware import find_device

FAMILY_LEVEL = 2
"""Highest level of similarity whose runs are of the job's family."""


def build_view(
    run: Run,
    similar: SimilarRuns | None,
    cluster: ClusterView,
    now_ms: int,
    memory: Iterable[MemorySample] = (),
) -> View:
    """Return the view of a job; what is not known stays out."""
    began = run.job.started_ms
    age_s = (now_ms - began) / 1000 if began else 0.0
    return View(
        now_ms=now_ms,
        run=run,
        similar=similar,
        cluster=cluster,
        memory_samples=tuple(memory),
        device_memory_bytes=device_memory(run),
        remaining_s=remaining_s(similar, age_s),
    )


def with_live_facts(
    view: View, observed: JobObservations, servers: ServerTable, nodes: Mapping[str, Exposure]
) -> View:
    """Add what masters and the metrics API report of a running job.

    Args:
        view: the view.
        observed: what was observed of the job.
        servers: its parameter servers.
        nodes: failures and device hours of each node.
    """
    where = observed.nodes_of_pods()
    details = [observed.details[key] for key in sorted(observed.details)]
    present = details[-1] if details else None
    similar = view.similar
    family = (*similar.runs, *similar.bounds) if similar and similar.level <= FAMILY_LEVEL else ()
    mine = {pod.node for pod in view.run.pods if pod.ended_ms is None}
    return msgspec.structs.replace(
        view,
        rank_speeds=rank_speeds(observed.windows, lambda pod: where.get(pod, ""), view.now_ms),
        node_checks=node_checks(observed.checks.values(), lambda pod: where.get(pod, "")),
        device_peaks=device_peaks(
            details,
            _model_memory,
            (*ended_by_shortage([view.run]), *view.run.shortages),
            ended_by_shortage(family),
        ),
        loader_workers=present.loader_workers if present else None,
        save_seconds=present.save_s if present else None,
        checkpoint_interval_s=present.save_interval_s if present else None,
        restart_seconds=restart_seconds(details),
        servers=servers.use(),
        exposure=exposure([view.run, *family], view.now_ms),
        node_exposure=of_nodes(nodes, mine),
    )


def device_memory(run: Run) -> int | None:
    """Return the memory of one device of the job; None if its model is not known."""
    models = {segment.gpu_model for segment in run.segments if segment.gpu_model}
    models |= {role.gpu_model for role in run.job.roles if role.gpu_model}
    if len(models) != 1:
        return None
    return _model_memory(next(iter(models)))


@lru_cache(maxsize=1024)
def _model_memory(model: str) -> int | None:
    try:
        return int(find_device(model).memory_bytes)
    except (LookupError, ValueError):
        return None
