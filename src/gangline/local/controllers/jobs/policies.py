"""Policies of a Job: which failures of pods count, and when a Job with indexes has ended.

``podFailurePolicy`` (KEP-3329): the first rule that a failed pod matches decides whether the Job
fails at once, its index fails, the failure is ignored, or counts. ``successPolicy`` (KEP-3998): the
Job is complete when a rule holds. ``backoffLimitPerIndex`` (KEP-3850): each index has its own
limit; the number of failures is an annotation of the index's next pod.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from gangline.api.core.pod import Pod
from gangline.api.jobs.training_runtime import IGNORE, IN, PodFailurePolicy, PodFailureRule
from gangline.api.meta.objects import Wire

INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation and label of a pod with its completion index."""
FAILURE_COUNT = "batch.kubernetes.io/job-index-failure-count"
"""Annotation of a pod with the number of failures of its index before it."""
FAIL_INDEX = "FailIndex"


class SuccessRule(Wire):
    succeeded_indexes: str | None = None
    succeeded_count: int | None = None


class SuccessPolicy(Wire):
    rules: list[SuccessRule] = msgspec.field(default_factory=list)


class FailureMatch(NamedTuple):
    """The decision of a rule on a failed pod."""

    action: str = ""
    """Empty if no rule matches: the failure counts."""
    message: str = ""


def match_failure(policy: PodFailurePolicy | None, pod: Pod) -> FailureMatch:
    """Return the decision of the first rule that matches a failed pod."""
    for number, rule in enumerate(policy.rules if policy is not None else ()):
        if what := _matched(rule, pod):
            return FailureMatch(
                rule.action, f"{what} matching {rule.action} rule at index {number}"
            )
    return FailureMatch()


def _matched(rule: PodFailureRule, pod: Pod) -> str:
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    if (codes := rule.on_exit_codes) is not None:
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
            end = status.state.terminated
            if end is None or codes.container_name not in ("", status.name):
                continue
            # Code 0 is no failure, so that NotIn does not match it.
            if end.exit_code and (end.exit_code in codes.values) == (codes.operator == IN):
                return (
                    f"Container {status.name} for pod {name} failed with exit code {end.exit_code}"
                )
        return ""
    for wanted in rule.on_pod_conditions:
        if any((c.type, c.status) == (wanted.type, wanted.status) for c in pod.status.conditions):
            return f"Pod {name} has condition {wanted.type}"
    return ""


def matched_success(
    policy: SuccessPolicy | None, completed: AbstractSet[int], completions: int
) -> str:
    """Return the message of the first rule that holds for the completed indexes; empty: none."""
    for number, rule in enumerate(policy.rules if policy is not None else ()):
        if rule.succeeded_indexes is None:
            wanted, matched = 0, len(completed)
        else:
            indexes = parse_indexes(rule.succeeded_indexes, completions)
            wanted, matched = len(indexes), len(indexes & completed)
        if matched >= (wanted if rule.succeeded_count is None else rule.succeeded_count):
            return f"Matched rules at index {number}"
    return ""


def parse_indexes(text: str, completions: int) -> set[int]:
    """Return the indexes below ``completions``; parts that are not numbers are ignored."""
    indexes: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = _number(first), _number(last or first)
        if low is not None and high is not None:
            indexes.update(range(low, min(high, completions - 1) + 1))
    return indexes


def index_of(pod: Pod) -> int | None:
    return _number(pod.metadata.annotations.get(INDEX, ""))


def _number(text: str) -> int | None:
    """Return a number that a client may have written. (Python reads at most 4,300 digits.)"""
    return int(text) if text.isdecimal() and len(text) < 20 else None


@dataclass(frozen=True, slots=True)
class IndexFailures:
    """What ``backoffLimitPerIndex`` makes of the pods of a Job."""

    counts: Mapping[int, int]
    """Failures of each index, for the annotation of its next pod."""
    failed: frozenset[int]
    """Indexes that have failed for good."""
    last: Mapping[int, Pod]
    """The last failed pod of each index that is to run again. It keeps its finalizer until the next
    pod exists, since only it knows the number of failures.
    """


def index_failures(
    pods: Sequence[Pod],
    decisions: Mapping[str, FailureMatch],
    completed: AbstractSet[int],
    limit: int,
) -> IndexFailures:
    """Count the failures of each index. ``decisions`` has those on failed pods, by uid."""

    def before(pod: Pod) -> int:
        return _number(pod.metadata.annotations.get(FAILURE_COUNT, "")) or 0

    newest: dict[int, Pod] = {}
    # After an ignored failure, the next pod has the same number.
    for pod in sorted(pods, key=lambda pod: (before(pod), pod.metadata.uid not in decisions)):
        index = index_of(pod)
        if index is not None and index not in completed:
            newest[index] = pod
    counts, last, failed = {}, {}, set()
    for index, pod in newest.items():
        decision, counts[index] = decisions.get(pod.metadata.uid), before(pod)
        if decision is None:
            continue
        counts[index] += decision.action != IGNORE
        if counts[index] > limit or decision.action == FAIL_INDEX:
            failed.add(index)
        else:
            last[index] = pod
    return IndexFailures(counts, frozenset(failed), last)
