"""Advice as users see it, and which of its changes are worth a write.

Also learned run times, as an annotation of pod groups for estimates of start times.
"""

import logging
import re
from collections.abc import Iterable, Iterator
from statistics import median
from typing import NamedTuple

import msgspec

from gangline.api.brain.job_advice import (
    APPLIED,
    HELD,
    RUN_TIME_ESTIMATE_ANNOTATION,
    AdviceEvidence,
    AdviceItem,
    JobAdviceStatus,
)
from gangline.api.figures import plain_number
from gangline.api.resources import POD_GROUPS
from gangline.api.volcano.scheduling import PodGroup
from gangline.brain.advisers.advice import Advice, Unit, What
from gangline.brain.advisers.view import SimilarRuns
from gangline.brain.facts.records import Run
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError

log = logging.getLogger(__name__)

LEAST_RUNS = 3
MAX_LEVEL = 2
"""The run time of jobs that only share an image says nothing."""
RELATIVE_CHANGE = 0.1


def run_time_estimate_s(similar: SimilarRuns | None) -> int | None:
    """Return the median run time of the family; None if too few runs are known."""
    if similar is None or similar.level > MAX_LEVEL:
        return None
    times = [seconds for run in similar.runs if (seconds := _run_time_s(run)) is not None]
    return round(median(times)) if len(times) >= LEAST_RUNS else None


def _run_time_s(run: Run) -> float | None:
    if run.job.finished_ms is None or run.job.started_ms is None:
        return None
    return max(0, run.job.finished_ms - run.job.started_ms) / 1000


async def write_estimate(client: ApiClient, group: PodGroup, seconds: int | None) -> bool:
    """Write the estimate on a group if it moved noticeably. Returns whether it was written."""
    written = group.metadata.annotations.get(RUN_TIME_ESTIMATE_ANNOTATION, "")
    if seconds is None or _is_close(written, seconds):
        return False
    patch = {"metadata": {"annotations": {RUN_TIME_ESTIMATE_ANNOTATION: str(seconds)}}}
    meta = group.metadata
    try:
        await client.patch(POD_GROUPS, meta.name, patch, meta.namespace)
    except ApiError as error:
        log.debug("cannot write an estimate: %s", error, extra={"podgroup": meta.name})
        return False
    return True


def _is_close(written: str, seconds: int) -> bool:
    if not (written.isascii() and written.isdecimal()):
        return False
    return abs(int(written) - seconds) <= RELATIVE_CHANGE * seconds


def remaining_s(similar: SimilarRuns | None, age_s: float) -> float | None:
    """Return the median rest of comparable runs that lasted longer than this; None if none did."""
    times: Iterable[float | None] = map(_run_time_s, similar.runs) if similar else ()
    rests = [seconds - age_s for seconds in times if seconds is not None and seconds > age_s]
    return median(rests) if rests else None


ADVISED, APPLIED_EVENT, HELD_EVENT = "Advised", "AdviceApplied", "AdviceHeld"
ROLLED_BACK_EVENT = "AdviceRolledBack"


LEAST_CHANGE = {Unit.BYTES: 256 * 2**20, Unit.MILLICORES: 250, Unit.COUNT: 1, Unit.SECONDS: 1}
_GIB, _MIB = 2**30, 2**20
_AMOUNT = re.compile(r"\d[\d.,]*( ?(%|[A-Za-z]+))?")

_ORDER = tuple(What)


class AdviceChange(NamedTuple):
    """A change of one item that the job's events show."""

    reason: str
    message: str


def format_amount(value: float | None, unit: str) -> str:
    """Return a number as users write it: ``11.3Gi``, ``2500m``, ``146s``, ``8``."""
    if value is None:
        return ""
    match unit:
        case Unit.BYTES:
            return (
                f"{plain_number(value / _GIB, 3)}Gi" if value >= _GIB else f"{value / _MIB:.0f}Mi"
            )
        case Unit.MILLICORES:
            return plain_number(value / 1000) if value % 1000 == 0 else f"{value:.0f}m"
        case Unit.SECONDS:
            return f"{value:.0f}s"
    return plain_number(value, 6)


def advice_item(
    advice: Advice,
    sentence: str,
    evidence: AdviceEvidence,
    state: str,
    held_because: str = "",
) -> AdviceItem:
    """Return advice in the form in which it is stored."""
    return AdviceItem(
        what=advice.what,
        role=advice.role,
        rank=advice.rank,
        target=advice.target,
        unit=advice.unit,
        was=advice.was,
        value=advice.value,
        low=advice.low,
        high=advice.high,
        now=format_amount(advice.was, advice.unit),
        advised=format_amount(advice.value, advice.unit) or advice.target,
        sentence=sentence,
        reason=advice.reason.code,
        arguments=dict(advice.reason.arguments),
        evidence=evidence,
        confidence=advice.confidence,
        extrapolated=advice.extrapolated,
        state=state,
        held_because=held_because,
    )


def ordered(items: Iterable[AdviceItem]) -> list[AdviceItem]:
    """Order items by subject, so that the same advice is always the same list."""
    return sorted(
        items, key=lambda item: (_rank(item.what), item.role, item.rank or 0, item.target)
    )


def _rank(what: str) -> int:
    return _ORDER.index(What(what)) if what in set(What) else len(_ORDER)


def with_summary(status: JobAdviceStatus) -> JobAdviceStatus:
    """Fill in the fields that tables show."""
    first = status.items[0] if status.items else None
    names = dict.fromkeys(f"{item.role} {item.what}".strip() for item in status.items)
    return msgspec.structs.replace(
        status,
        what=", ".join(names),
        now=first.now if first else "",
        advised=first.advised if first else "",
        why=first.sentence if first else "",
    )


def settled(old: Iterable[AdviceItem], new: Iterable[AdviceItem]) -> list[AdviceItem]:
    """Return the items to store: an old one where the new one differs too little from it."""
    stored = {_subject(item): item for item in old}
    return ordered(
        before
        if (before := stored.get(_subject(item))) is not None and not _differs(before, item)
        else item
        for item in new
    )


def changes(old: Iterable[AdviceItem], new: Iterable[AdviceItem]) -> Iterator[AdviceChange]:
    """Yield what is new in ``new``, which is ``settled``: each change once."""
    stored = {_subject(item): item for item in old}
    for item in new:
        before = stored.get(_subject(item))
        if before is not None and before == item:
            continue
        if item.state == APPLIED:
            if before is None or before.state != APPLIED or before.value != item.value:
                yield AdviceChange(APPLIED_EVENT, item.sentence)
        elif before is None or _moved(before, item) or before.reason != item.reason:
            yield AdviceChange(ADVISED, item.sentence)
        if item.state == HELD and (before is None or _hold(before) != _hold(item)):
            yield AdviceChange(HELD_EVENT, f"{item.what}: {item.held_because}")


def _hold(item: AdviceItem) -> str:
    """Why an item is held, without the amounts: they change in each evaluation."""
    return _AMOUNT.sub("#", item.held_because)


def _subject(item: AdviceItem) -> tuple[str, str, int, str]:
    return item.what, item.role, -1 if item.rank is None else item.rank, item.target


def _differs(old: AdviceItem, new: AdviceItem) -> bool:
    fixed_old = (old.state, _hold(old), old.reason, old.was, old.confidence, old.unit)
    fixed_new = (new.state, _hold(new), new.reason, new.was, new.confidence, new.unit)
    return fixed_old != fixed_new or _moved(old, new)


def _moved(old: AdviceItem, new: AdviceItem) -> bool:
    if old.value is None or new.value is None:
        return old.value != new.value or (old.value is None and old.sentence != new.sentence)
    difference = abs(new.value - old.value)
    least = LEAST_CHANGE.get(Unit(new.unit), 0) if new.unit in set(Unit) else 0
    if new.unit == Unit.COUNT:
        return difference >= least
    return difference >= least and difference >= RELATIVE_CHANGE * abs(old.value)
