"""Device models: a gang trains as slowly as its slowest device, so it prefers one model.

This is a preference: a gang that no model can hold is placed across models. Nodes name their device
model in a label; nodes without the label count as one model.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence, Set

import numpy as np

from gangline.scheduler.model import PodInfo, PodShape
from gangline.scheduler.node_traits import DeviceModels, Mask
from gangline.scheduler.nodes import NodeTable
from gangline.scheduler.side_by_side import PlacePods, is_satisfied
from gangline.scheduler.trial import ScratchAllocation
from gangline.scheduler.units import PendingGang


def place_on_one_device_model(
    trial: ScratchAllocation, unit: PendingGang, pods: Sequence[PodInfo], place: PlacePods
) -> list[PodInfo]:
    """Place pods of a gang, on one model if that holds as many of them; return the rest.

    Args:
        trial: the scratch allocation.
        unit: the gang.
        pods: the pods to place.
        place: places pods on the rows that the allocation allows.
    """
    models = _device_models(trial.nodes)
    # Previous and reserved nodes take precedence.
    if models is None or unit.previous_nodes or len(pods) + len(unit.running) < 2:
        return place(trial, unit, pods)
    mark = trial.mark()
    unfit = place(trial, unit, pods)
    placed = Counter[str]()
    for placement in trial.since(mark):
        if placement.demand.wants_device:
            placed[models.by_row[placement.row]] += placement.count
    candidates = _candidates(models, trial, unit, placed) if placed else []
    if not candidates or not is_satisfied(trial, unit, mark):
        return unfit
    for model in candidates:
        trial.rollback(mark)
        left = _place_within(trial, models.masks[model], lambda: place(trial, unit, pods))
        if len(left) <= len(unfit) and is_satisfied(trial, unit, mark):
            return list(left)
    trial.rollback(mark)
    return place(trial, unit, pods)


def place_on_models_in_use(
    trial: ScratchAllocation,
    unit: PendingGang,
    shape: PodShape,
    pods: Sequence[PodInfo],
    rows: Iterable[int],
) -> Sequence[PodInfo]:
    """Place further pods of a gang, first on the models that it uses; return the rest.

    Args:
        trial: the scratch allocation.
        unit: the gang.
        shape: the shape of the pods.
        pods: the pods.
        rows: rows of pods of the gang that were placed in this cycle.
    """
    models = _device_models(trial.nodes) if trial.nodes.demand(shape.request).wants_device else None
    if models is None:
        return trial.place(shape, pods)
    there = {models.by_row[row] for row in rows} | _models_in_use(models, trial.nodes, unit.running)
    if not there:
        return trial.place(shape, pods)
    alike = np.logical_or.reduce([models.masks[model] for model in sorted(there)])
    left = _place_within(trial, alike, lambda: trial.place(shape, pods))
    return trial.place(shape, left) if left else left


def _place_within(
    trial: ScratchAllocation, rows: Mask, place: Callable[[], Sequence[PodInfo]]
) -> Sequence[PodInfo]:
    outer = trial.within
    trial.within = rows if outer is None else outer & rows
    left = place()
    trial.within = outer
    return left


def _device_models(nodes: NodeTable) -> DeviceModels | None:
    return nodes.models() if nodes.weights.same_device_model else None


def _candidates(
    models: DeviceModels, trial: ScratchAllocation, unit: PendingGang, placed: Counter[str]
) -> list[str]:
    """Return the models to try if a gang has devices of several; the most used one first."""
    settled = _models_in_use(models, trial.nodes, unit.running)
    if len(settled | placed.keys()) < 2:
        return []
    return sorted(settled or models.present, key=lambda model: (-placed[model], model))


def _models_in_use(models: DeviceModels, nodes: NodeTable, pods: Collection[PodInfo]) -> Set[str]:
    return {
        models.by_row[row]
        for pod in pods
        if pod.node is not None
        and (row := nodes.rows.get(pod.node)) is not None
        and nodes.demand(pod.shape.request).wants_device
    }
