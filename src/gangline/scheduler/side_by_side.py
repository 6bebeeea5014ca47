"""Colocation: places a gang's pods with devices on few nodes, where devices communicate fastest.

Packing fills partly used nodes first. That keeps unused nodes free, and may spread a gang that fits
on fewer nodes. If the weight is set, both placements are computed and the cheaper one is taken:
each node of the gang costs the weight, and each node that was unused before costs one.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.model import PodInfo, PodShape
from gangline.scheduler.nodes import NodeTable
from gangline.scheduler.plugins.node_scores import is_device
from gangline.scheduler.trial import ScratchAllocation
from gangline.scheduler.units import PendingGang

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
