"""Colocation: few nodes for a gang's pods with devices, and one device model.

Packing fills partly used nodes first. That keeps unused nodes free, and may spread a gang that fits
on fewer nodes. If the weight is set, both placements are computed and the cheaper one is taken:
each node of the gang costs the weight, and each node that was unused before costs one.

A gang trains as slowly as its slowest device, so it prefers devices of one model. This is a
preference: a gang that no model can hold is placed across models. Nodes name their device model in
a label; nodes without the label count as one model.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.cache.node_stats import DeviceModels, Mask
from gangline.scheduler.cache.node_table import NodeTable
from gangline.scheduler.placement.scratch import ScratchAllocation
from gangline.scheduler.plugins.scores import is_device
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.types.types import PodInfo, PodShape

PlacePods = Callable[[ScratchAllocation, PendingGang, Sequence[PodInfo]], list[PodInfo]]
OrderPods = Callable[
    [NodeTable, PendingGang, Sequence[PodInfo]], list[tuple[PodShape, list[PodInfo]]]
]


def place_colocated(
    trial: ScratchAllocation,
    unit: PendingGang,
    pods: Sequence[PodInfo],
    place: PlacePods,
    order: OrderPods,
) -> list[PodInfo]:
    """Place pods of a gang, on fewer nodes than packing if that costs less; return the rest.

    Args:
        trial: the scratch allocation.
        unit: the gang.
        pods: the pods to place.
        place: places pods by packing.
        order: groups and sorts pods for placing.
    """
    weight = trial.nodes.weights.fewer_nodes
    if not weight or unit.previous_nodes or unit.subgroups or unit.role_affinity or len(pods) < 2:
        return place(trial, unit, pods)
    mark, unused = trial.mark(), _unused_nodes(trial)
    unfit = place(trial, unit, pods)
    if not is_satisfied(trial, unit, mark):
        return unfit
    packed = _cost(trial, mark, unused, weight)
    trial.rollback(mark)
    left = _place_on_few_nodes(trial, order(trial.nodes, unit, pods))
    enough = len(left) <= len(unfit) and is_satisfied(trial, unit, mark)
    if enough and _cost(trial, mark, unused, weight) < packed:
        return left
    trial.rollback(mark)
    return place(trial, unit, pods)


def _place_on_few_nodes(
    trial: ScratchAllocation, alike: Sequence[tuple[PodShape, Sequence[PodInfo]]]
) -> list[PodInfo]:
    """Fill the node that holds most of the pods, then the one that holds most of the rest."""
    unfit: list[PodInfo] = []
    for shape, pods in alike:
        demand = trial.nodes.demand(shape.request)
        if not demand.wants_device or trial.has_inter_pod_rules(shape):
            unfit += trial.place(shape, pods)
            continue
        rows = np.array(trial.rows_for(shape), dtype=np.intp)
        amounts = np.array([[amount] for _, amount, _ in demand.terms])
        columns = np.array([column for column, _, _ in demand.terms], dtype=np.intp)
        free = trial.free[np.ix_(columns, rows)]
        capacity = (free // amounts).min(axis=0, initial=len(pods))
        left = list(pods)
        while left and capacity.any():
            # argmax takes the first of equal rows, and rows are sorted by score.
            best = int(np.minimum(capacity, len(left)).argmax())
            here, left = left[: capacity[best]], left[capacity[best] :]
            unfit += [pod for pod in here if not trial.place_on_row(pod, int(rows[best]))]
            capacity[best] = 0
        unfit += left
    return unfit


def _unused_nodes(trial: ScratchAllocation) -> NDArray[np.bool_]:
    """Return a mask of the rows whose devices are all free."""
    columns = [column for name, column in trial.nodes.columns.items() if is_device(name)]
    unused: NDArray[np.bool_] = (trial.free[columns] == trial.nodes.allocatable[columns]).all(
        axis=0
    )
    return unused


def _cost(trial: ScratchAllocation, mark: int, unused: NDArray[np.bool_], weight: float) -> float:
    rows = {each.row for each in trial.since(mark) if each.demand.wants_device}
    return weight * len(rows) + sum(bool(unused[row]) for row in rows)


def is_satisfied(trial: ScratchAllocation, unit: PendingGang, mark: int) -> bool:
    """Return whether the gang may start with the placements since ``mark``."""
    return unit.satisfied_by(pod for each in trial.since(mark) for pod in each.pods)


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
