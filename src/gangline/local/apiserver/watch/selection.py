"""Label and field selectors of a list or watch, compiled."""

from functools import lru_cache

from gangline.api.meta.selectors import (
    Requirement,
    Selector,
    SelectorError,
    parse_field_selector,
    parse_label_selector,
)
from gangline.local import limits
from gangline.local.apiserver.core.errors import bad_request
from gangline.local.apiserver.core.registry import ServedKind
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.storage.watch_cache import ObjectRevision

MAX_CACHED_CHARS = 1000
"""Longer selectors are not cached: a thousand of them would take much memory."""
NAME, NAMESPACE = "metadata.name", "metadata.namespace"


class SelectionPredicate:
    """A compiled pair of selectors. ``key`` is set if only the object with this key can match."""

    def __init__(self, labels: Selector, fields: Selector, key: str | None) -> None:
        self.text = f"{labels}|{fields}"
        self.key = key
        self._labels = labels if labels.requirements else None
        self._fields = [r for r in fields.requirements if r.key not in (NAME, NAMESPACE)]
        self._identity = [r for r in fields.requirements if r.key in (NAME, NAMESPACE)]
        self.terms = len(labels.requirements) + len(fields.requirements)
        self.matches_all = not (labels.requirements or fields.requirements)

    def matches(self, record: ObjectRevision) -> bool:
        if self._labels is not None and not self._labels.matches(record.labels):
            return False
        if self._identity and not _all_match(self._identity, _identity(record)):
            return False
        return _all_match(self._fields, record.fields)


def _all_match(requirements: list[Requirement], fields: dict[str, str]) -> bool:
    return all(requirement.matches(fields) for requirement in requirements)


def _identity(record: ObjectRevision) -> dict[str, str]:
    namespace, _, name = record.key.rpartition("/")
    return {NAME: name, NAMESPACE: namespace}


def compile_selection(request: ApiRequest) -> SelectionPredicate:
    """Return the compiled selectors of a request, including its name if it has one.

    Raises:
        StatusError: 400, a selector is invalid or names a field that is not selectable.
    """
    labels = request.params.get("labelSelector", "")
    fields = request.params.get("fieldSelector", "")
    for option, text in (("labelSelector", labels), ("fieldSelector", fields)):
        if text.count(",") >= limits.MAX_SELECTOR_VALUES:
            most = limits.MAX_SELECTOR_VALUES
            raise bad_request(f"{option} has more than {most} terms and values")
    if request.name:
        fields = f"{fields},{NAME}={request.name}" if fields else f"{NAME}={request.name}"
    compile_ = _compile if len(labels) + len(fields) <= MAX_CACHED_CHARS else _compile.__wrapped__
    return compile_(request.kind, request.namespace, labels, fields)


@lru_cache(maxsize=1024)
def _compile(
    kind: ServedKind, namespace: str | None, labels: str, fields: str
) -> SelectionPredicate:
    try:
        by_label, by_field = parse_label_selector(labels), parse_field_selector(fields)
    except SelectorError as error:
        raise bad_request(f"unable to parse requirement: {error}") from None
    for selector in (by_label, by_field):
        if len(selector.requirements) > limits.MAX_SELECTOR_TERMS:
            raise bad_request(f"a selector has more than {limits.MAX_SELECTOR_TERMS} terms")
    key = None
    for requirement in by_field.requirements:
        if requirement.key not in (NAME, NAMESPACE, *kind.selectable):
            raise bad_request(f"field label not supported: {requirement.key}")
        if requirement.key == NAME and requirement.operator == "=":
            name = requirement.values[0]
            if not kind.namespaced or namespace:
                key = f"{namespace}/{name}" if kind.namespaced else name
    return SelectionPredicate(by_label, by_field, key)
