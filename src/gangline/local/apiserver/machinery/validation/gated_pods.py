"""Validation of changes to the scheduling of pods that have scheduling gates.

Rules of Kubernetes (KEP-3521, KEP-3838): gates can be removed and never added. While a pod has
gates, its node selector and its required node affinity can be narrowed, and its preferred node
affinity can be replaced. Admission systems such as Kueue place a gated pod so, and then
remove the gate.
"""

from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import indexed
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.validation.field_rules import Causes
from gangline.local.apiserver.machinery.schema.nodes import Json

_GATES = "spec.schedulingGates"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TERM_LISTS = ("matchExpressions", "matchFields")


def added_gate_causes(before: Json, after: Json) -> Causes:
    """Check that no gate was added, given the two pod specs."""
    known = [gate.get("name") for gate in objects_in(before.get("schedulingGates"))]
    for index, gate in enumerate(objects_in(after.get("schedulingGates"))):
        if gate.get("name") not in known:
            detail = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            yield field_causes.forbidden(f"{indexed(_GATES, index)}.name", detail)


def narrowing_causes(before: Json, after: Json) -> Causes:
    """Check that the nodes of a gated pod were only narrowed, given the two pod specs."""
    given = subobject(after, "nodeSelector")
    old = subobject(before, "nodeSelector")
    if any(given.get(label) != value for label, value in old.items()):
        detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        yield field_causes.invalid("spec.nodeSelector", given, detail)
    path = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
    terms, allowed = _required_terms(after), _required_terms(before)
    if not allowed:
        return
    if len(terms) != len(allowed):
        detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        yield field_causes.invalid(path, terms, detail)
        return
    for index, (term, former) in enumerate(zip(terms, allowed, strict=True)):
        if not _is_narrowed(former, term):
            detail = "only additions are allowed (no mutations or deletions)"
            yield field_causes.invalid(indexed(path, index), term, detail)


def remove_node_constraints(spec: Json) -> None:
    """Remove node selector and node affinity from a pod spec, to compare its other fields."""
    spec.pop("nodeSelector", None)
    affinity = spec.get("affinity")
    if isinstance(affinity, dict):
        affinity.pop("nodeAffinity", None)
    if not affinity:
        spec.pop("affinity", None)


def _required_terms(spec: Json) -> list[Json]:
    required = subobject(spec, "affinity", "nodeAffinity", _REQUIRED)
    return objects_in(required.get("nodeSelectorTerms"))


def _is_narrowed(former: Json, term: Json) -> bool:
    old = [objects_in(former.get(name)) for name in _TERM_LISTS]
    new = [objects_in(term.get(name)) for name in _TERM_LISTS]
    if not any(old):
        return not any(new)  # A term without expressions matches no node: any expression adds some.
    return all(after[: len(before)] == before for before, after in zip(old, new, strict=True))
