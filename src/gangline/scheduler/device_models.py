"""Keeping a gang on nodes with devices of one model: it trains as slowly as its slowest device.

A wish: a gang that no model takes whole is placed across models. Nodes say in a label what devices
they have; nodes without the label are alike.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.model import PodFacts, Shape
from gangline.scheduler.nodes import NodeTable
from gangline.scheduler.trial import Trial
from gangline.scheduler.units import Unit

MODEL_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
)
"""Where nodes say what devices they have; the first that any node has counts."""

Place = Callable[[Trial, Unit, Sequence[PodFacts]], list[PodFacts]]
Rows = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Models:
    """Which rows have the same model."""

    nodes: NodeTable
    label: str
    numbers: NDArray[np.intp]

    def of(self, row: int) -> str:
        """Return the model of a row; empty: its node does not say."""
        node = self.nodes.facts[row]
        return dict(node.labels).get(self.label, "") if node is not None else ""

    def examples(self) -> dict[str, int]:
        """Return all models that there are, each with a row of it."""
        rows = np.flatnonzero(self.nodes.has_devices())
        _, first = np.unique(self.numbers[rows], return_index=True)
        return {self.of(row): row for row in rows[first].tolist()}

    def rows(self, examples: Collection[int]) -> Rows:
        """Return the rows that have the models of these, and those without any devices."""
        numbers = [self.numbers[row] for row in examples]
        return np.isin(self.numbers, numbers) | ~self.nodes.has_devices()


def place_on_one_model(
    trial: Trial, unit: Unit, pods: Sequence[PodFacts], place: Place
) -> list[PodFacts]:
    """Place pods of a unit, on one model if as many find a node there; return those that do not.

    Args:
        trial: what is on paper.
        unit: the unit.
        pods: those of its pods to place.
        place: places them within the rows that the trial may use.
    """
    mark, outer = trial.mark(), trial.within
    unfit = place(trial, unit, pods)
    # Where pods were before, or are to be by plan, counts for more.
    alone = unit.places or len(pods) + len(unit.running) < 2
    models = _models(trial.nodes) if not alone else None
    if models is None:
        return unfit
    there = set(_rows_of(trial.nodes, unit.running))
    placed = Counter[int]()
    for placement in trial.since(mark):
        if placement.demand.wants_device:
            placed[placement.row] += placement.count
    candidates = _candidates(models, there, placed)
    if not candidates or not _satisfied(trial, unit, mark):
        return unfit
    for row in candidates:
        trial.rollback(mark)
        rows = models.rows([row])
        trial.within = rows if outer is None else outer & rows
        left = place(trial, unit, pods)
        trial.within = outer
        if len(left) <= len(unfit) and _satisfied(trial, unit, mark):
            return left
    trial.rollback(mark)
    return place(trial, unit, pods)


def place_like_the_others(
    trial: Trial, unit: Unit, shape: Shape, pods: Sequence[PodFacts], rows: Iterable[int]
) -> Sequence[PodFacts]:
    """Place further pods of a gang, if they will go on the models that it has; return the rest.

    Args:
        trial: what is on paper.
        unit: the gang.
        shape: the shape of the pods.
        pods: the pods.
        rows: where the gang was given room a moment ago.
    """
    models = _models(trial.nodes) if trial.nodes.demand(shape.request).wants_device else None
    there = {*rows, *_rows_of(trial.nodes, unit.running)} if models is not None else set()
    if models is None or not there:
        return trial.place(shape, pods)
    outer = trial.within
    alike = models.rows(there)
    trial.within = alike if outer is None else outer & alike
    left = trial.place(shape, pods)
    trial.within = outer
    return trial.place(shape, left) if left else left


def _models(nodes: NodeTable) -> _Models | None:
    if not nodes.weights.one_model:
        return None
    for label in MODEL_LABELS:
        numbers = nodes.parts(label)
        if numbers.max(initial=-1) >= 0:
            return _Models(nodes, label, numbers)
    return None


def _candidates(models: _Models, there: Iterable[int], placed: Counter[int]) -> list[int]:
    """Return a row of each model to try, where a gang has more than one; the likeliest first."""
    settled = {models.of(row): row for row in there}
    counts = Counter[str]()
    for row, count in placed.items():
        counts[models.of(row)] += count
    if not counts or len(settled.keys() | counts.keys()) < 2:
        return []
    wanted = settled or models.examples()
    return [wanted[m] for m in sorted(wanted, key=lambda model: (-counts[model], model))]


def _rows_of(nodes: NodeTable, pods: Iterable[PodFacts]) -> Iterator[int]:
    """Return the rows of pods that have devices."""
    for pod in pods:
        row = nodes.rows.get(pod.node) if pod.node is not None else None
        if row is not None and nodes.demand(pod.shape.request).wants_device:
            yield row


def _satisfied(trial: Trial, unit: Unit, mark: int) -> bool:
    return unit.satisfied_by(pod for each in trial.since(mark) for pod in each.pods)
