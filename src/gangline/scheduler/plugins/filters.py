"""Node filters: which nodes a pod may use, apart from free resources. Each filter has its message.

Messages have Kubernetes' wording, which autoscalers parse. The order is kube-scheduler's: the first
filter that refuses a node determines the message.
"""

import re
from collections.abc import Callable, Mapping

from gangline.api.core.affinity import tolerates
from gangline.scheduler.types import (
    LabelExpression,
    NodeInfo,
    NodeTerm,
    PlacementConstraints,
    TaintInfo,
    TolerationInfo,
)

NodeFilter = Callable[[PlacementConstraints, NodeInfo], str]
"""Returns why the node is refused, or an empty text."""

UNSCHEDULABLE_TAINT = TaintInfo("node.kubernetes.io/unschedulable", "", "NoSchedule")
NOT_READY_TAINT = TaintInfo("node.kubernetes.io/not-ready", "", "NoSchedule")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})


def filter_message(constraints: PlacementConstraints, node: NodeInfo) -> str:
    """Return why a node is refused for these constraints; empty: it is accepted."""
    for accepts in FILTERS:
        if why := accepts(constraints, node):
            return why
    return ""


def _schedulable(constraints: PlacementConstraints, node: NodeInfo) -> str:
    if not node.unschedulable or _tolerated(UNSCHEDULABLE_TAINT, constraints.tolerations):
        return ""
    return "node(s) were unschedulable"


def _taints(constraints: PlacementConstraints, node: NodeInfo) -> str:
    for taint in node.taints:
        if taint.effect in _BLOCKING_EFFECTS and not _tolerated(taint, constraints.tolerations):
            return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
    return ""


def count_prefer_no_schedule(constraints: PlacementConstraints, node: NodeInfo) -> int:
    """Return the number of untolerated PreferNoSchedule taints."""
    return sum(
        taint.effect == "PreferNoSchedule" and not _tolerated(taint, constraints.tolerations)
        for taint in node.taints
    )


def has_blocking_taint(node: NodeInfo) -> bool:
    """Return whether a node has a NoSchedule or NoExecute taint."""
    return any(taint.effect in _BLOCKING_EFFECTS for taint in node.taints)


def _ready(constraints: PlacementConstraints, node: NodeInfo) -> str:
    # A node may be NotReady before it is tainted: a pod bound now would be lost.
    if node.ready or _tolerated(NOT_READY_TAINT, constraints.tolerations):
        return ""
    return "node(s) were not ready"


def _affinity(constraints: PlacementConstraints, node: NodeInfo) -> str:
    labels = dict(node.labels)
    selected = all(labels.get(key) == value for key, value in constraints.selector)
    if selected and (
        constraints.required is None
        or any(term_matches(term, labels, node.name) for term in constraints.required)
    ):
        return ""
    return "node(s) didn't match Pod's node affinity/selector"


def _required_node_terms(constraints: PlacementConstraints, node: NodeInfo) -> str:
    if not constraints.required_node_terms:
        return ""
    labels = dict(node.labels)
    for required in constraints.required_node_terms:
        if not any(term_matches(term, labels, node.name) for term in required.terms):
            return required.message
    return ""


FILTERS: tuple[NodeFilter, ...] = (_schedulable, _taints, _ready, _affinity, _required_node_terms)


def term_matches(term: NodeTerm, labels: Mapping[str, str], name: str) -> bool:
    if not (term.labels or term.fields):
        return False
    fields = {"metadata.name": name}
    return all(_holds(expression, labels) for expression in term.labels) and all(
        _holds(expression, fields) for expression in term.fields
    )


def _holds(expression: LabelExpression, labels: Mapping[str, str]) -> bool:
    value = labels.get(expression.key)
    match expression.operator:
        case "In":
            return value in expression.values
        case "NotIn":
            return value not in expression.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(expression.operator, value, expression.values)
    return False


def _compares(operator: str, value: str | None, bounds: tuple[str, ...]) -> bool:
    """Compare integers of 64 bits; other values match nothing, as in Kubernetes."""
    numbers = [int(text) for text in (value or "", *bounds) if _INTEGER.fullmatch(text)]
    if len(numbers) != 2 or any(not -(2**63) <= number < 2**63 for number in numbers):
        return False
    return numbers[0] > numbers[1] if operator == "Gt" else numbers[0] < numbers[1]


def _tolerated(taint: TaintInfo, tolerations: tuple[TolerationInfo, ...]) -> bool:
    return any(tolerates(toleration, taint) for toleration in tolerations)
