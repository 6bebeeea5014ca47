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
from gangline.scheduler.types import PodInfo, PodShape

PlacePods = Callable[[ScratchAllocation, PendingGang, Sequence[PodInfo]], list[PodInfo]]
OrderPods = Callable[
    [NodeTable, PendingGang, Sequence[PodInfo]], list[tuple[PodShape, list[PodInfo]]]
]


def place_colocated(
    scratch: ScratchAllocation,
    gang: PendingGang,
    pods: Sequence[PodInfo],
    place: PlacePods,
    order: OrderPods,
) -> list[PodInfo]:
    """Place pods of a gang, on fewer nodes than packing if that costs less; return the rest.

    Args:
        order: groups and sorts pods for placing.
    """
    weight = scratch.nodes.weights.fewer_nodes
    if not weight or gang.preferred_nodes or gang.subgroups or gang.role_affinity or len(pods) < 2:
        return place(scratch, gang, pods)
    mark, unused = scratch.mark(), _unused_nodes(scratch)
    unplaced = place(scratch, gang, pods)
    if not is_satisfied(scratch, gang, mark):
        return unplaced
    packed = _cost(scratch, mark, unused, weight)
    scratch.rollback(mark)
    left = _place_on_few_nodes(scratch, order(scratch.nodes, gang, pods))
    enough = len(left) <= len(unplaced) and is_satisfied(scratch, gang, mark)
    if enough and _cost(scratch, mark, unused, weight) < packed:
        return left
    scratch.rollback(mark)
    return place(scratch, gang, pods)


def _place_on_few_nodes(
    scratch: ScratchAllocation, same_shape: Sequence[tuple[PodShape, Sequence[PodInfo]]]
) -> list[PodInfo]:
    """Fill the node that holds most of the pods, then the one that holds most of the rest."""
    unplaced: list[PodInfo] = []
    for shape, pods in same_shape:
        demand = scratch.nodes.demand(shape.request)
        if not demand.wants_device or any(map(scratch.depends_on_others, pods)):
            unplaced += scratch.place(shape, pods)
            continue
        rows = np.array(scratch.rows_for(shape), dtype=np.intp)
        amounts = np.array([[amount] for _, amount, _ in demand.terms])
        columns = np.array([column for column, _, _ in demand.terms], dtype=np.intp)
        free = scratch.free[np.ix_(columns, rows)]
        capacity = (free // amounts).min(axis=0, initial=len(pods))
        left = list(pods)
        while left and capacity.any():
            # argmax takes the first of equal rows, and rows are sorted by score.
            best = int(np.minimum(capacity, len(left)).argmax())
            here, left = left[: capacity[best]], left[capacity[best] :]
            unplaced += [pod for pod in here if not scratch.place_on_row(pod, int(rows[best]))]
            capacity[best] = 0
        unplaced += left
    return unplaced


def _unused_nodes(scratch: ScratchAllocation) -> NDArray[np.bool_]:
    """Return a mask of the rows whose devices are all free."""
    columns = [column for name, column in scratch.nodes.columns.items() if is_device(name)]
    unused: NDArray[np.bool_] = (scratch.free[columns] == scratch.nodes.allocatable[columns]).all(
        axis=0
    )
    return unused


def _cost(scratch: ScratchAllocation, mark: int, unused: NDArray[np.bool_], weight: float) -> float:
    rows = {placement.row for placement in scratch.since(mark) if placement.demand.wants_device}
    return weight * len(rows) + sum(bool(unused[row]) for row in rows)


def is_satisfied(scratch: ScratchAllocation, gang: PendingGang, mark: int) -> bool:
    """Return whether the gang may start with the placements since ``mark``."""
    return gang.satisfied_by(pod for placement in scratch.since(mark) for pod in placement.pods)


def place_on_one_device_model(
    scratch: ScratchAllocation, gang: PendingGang, pods: Sequence[PodInfo], place: PlacePods
) -> list[PodInfo]:
    """Place pods of a gang, on one model if that holds as many of them; return the rest.

    Args:
        place: places pods on the rows that the allocation allows.
    """
    models = _device_models(scratch.nodes)
    # Previous and reserved nodes take precedence.
    if models is None or gang.preferred_nodes or len(pods) + len(gang.running) < 2:
        return place(scratch, gang, pods)
    mark = scratch.mark()
    unplaced = place(scratch, gang, pods)
    placed = Counter[str]()
    for placement in scratch.since(mark):
        if placement.demand.wants_device:
            placed[models.by_row[placement.row]] += placement.count
    candidates = _candidates(models, scratch, gang, placed) if placed else []
    if not candidates or not is_satisfied(scratch, gang, mark):
        return unplaced
    for model in candidates:
        scratch.rollback(mark)
        left = _place_within(scratch, models.masks[model], lambda: place(scratch, gang, pods))
        if len(left) <= len(unplaced) and is_satisfied(scratch, gang, mark):
            return list(left)
    scratch.rollback(mark)
    return place(scratch, gang, pods)


def place_on_models_in_use(
    scratch: ScratchAllocation,
    gang: PendingGang,
    shape: PodShape,
    pods: Sequence[PodInfo],
    rows: Iterable[int],
) -> Sequence[PodInfo]:
    """Place further pods of a gang, first on the models that it uses; return the rest.

    Args:
        rows: rows of pods of the gang that were placed in this cycle.
    """
    models = (
        _device_models(scratch.nodes) if scratch.nodes.demand(shape.request).wants_device else None
    )
    if models is None:
        return scratch.place(shape, pods)
    models_in_use = {models.by_row[row] for row in rows} | _models_in_use(
        models, scratch.nodes, gang.running
    )
    if not models_in_use:
        return scratch.place(shape, pods)
    same_shape = np.logical_or.reduce([models.masks[model] for model in sorted(models_in_use)])
    left = _place_within(scratch, same_shape, lambda: scratch.place(shape, pods))
    return scratch.place(shape, left) if left else left


def _place_within(
    scratch: ScratchAllocation, rows: Mask, place: Callable[[], Sequence[PodInfo]]
) -> Sequence[PodInfo]:
    outer = scratch.within
    scratch.within = rows if outer is None else outer & rows
    left = place()
    scratch.within = outer
    return left


def _device_models(nodes: NodeTable) -> DeviceModels | None:
    return nodes.models() if nodes.weights.same_device_model else None


def _candidates(
    models: DeviceModels, scratch: ScratchAllocation, gang: PendingGang, placed: Counter[str]
) -> list[str]:
    """Return the models to try if a gang has devices of several; the most used one first."""
    settled = _models_in_use(models, scratch.nodes, gang.running)
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
