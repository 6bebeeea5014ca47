"""JobAdvice: what the Brain advises for one job (``brain.gangline.dev/v1alpha1``).

It has the name of its job and is deleted with it. Everything is in the status, which only the Brain
writes; what a user allows is in annotations of the job.
"""

from datetime import datetime
from typing import Annotated

from gangline.api.meta.field_doc import FreeForm, doc
from gangline.api.meta.objects import Object, Wire

BRAIN_ANNOTATION = "gangline.dev/brain"
"""On a job: ``off``, ``advise`` or ``apply``. As label on a namespace, ``off`` excludes it."""
MAY_ANNOTATION = "gangline.dev/brain-may"
"""On a job: the fields that may be changed, separated by commas."""
MAX_GLOBAL_BATCH_ANNOTATION = "gangline.dev/brain-max-global-batch"
"""On a job: the largest number of records of one step."""
LEARNING_RATE_ANNOTATION = "gangline.dev/brain-learning-rate"
"""On a job: the rule by which the script adapts the learning rate to the batch."""
OWNER_ANNOTATION = "gangline.dev/owner"
"""On a job: the user who submitted it, as the submitter states it. It allows nothing."""
LEASE_NAME = "gangline-brain"
"""The lease of the leading Brain."""
RECORD_LEASE_NAME = "gangline-brain-record"
"""The lease of the one that leads among those that only record."""
RUN_TIME_ESTIMATE_ANNOTATION = "gangline.dev/run-time-estimate-seconds"
"""On a PodGroup: learned run time of the gang in seconds. It is an estimate and never a limit: a
gang with it is not backfilled.
"""
MAYS = ("workers", "memory", "cpu", "ps", "batch", "checkpoints", "placement")
LEARNING_RATE_RULES = ("adascale", "linear", "sqrt", "none")

OPEN, HELD, APPLIED, SUPERSEDED, REFUSED, EXPIRED = (
    "open",
    "held",
    "applied",
    "superseded",
    "refused",
    "expired",
)
"""States of an item."""


class AdviceEvidence(Wire):
    """The runs that a piece of advice rests on."""

    runs: Annotated[int, doc("How many runs.", minimum=0)] = 0
    of: Annotated[
        list[str], doc("Their names, as far as they are in the namespace of the job.")
    ] = []
    namespaces: Annotated[int, doc("How many namespaces they are of.", minimum=0)] = 0
    since: Annotated[datetime | None, doc("End of the oldest of them.")] = None


class AdviceItem(Wire):
    """A number for one field of the job."""

    what: Annotated[str, doc("The field: workers, memory, cpu, ...", required=True)] = ""
    role: Annotated[str, doc("Role of the pods; empty for the job.")] = ""
    rank: Annotated[int | None, doc("Given if only this rank is meant.", minimum=0)] = None
    target: Annotated[str, doc("The node, for advice on a node.")] = ""
    unit: Annotated[str, doc("Unit of the numbers: count, bytes, millicores, seconds.")] = ""
    was: Annotated[float | None, doc("The present number; absent if it is not known.")] = None
    value: Annotated[float | None, doc("The advised number.")] = None
    low: Annotated[float | None, doc("Lower end of the range of the number.")] = None
    high: Annotated[float | None, doc("Upper end of the range of the number.")] = None
    now: Annotated[str, doc("The present number, as users write it.")] = ""
    advised: Annotated[str, doc("The advised number, as users write it.")] = ""
    sentence: Annotated[str, doc("The advice and its reason, for users.")] = ""
    reason: Annotated[str, doc("Why, as one CamelCase word.")] = ""
    arguments: Annotated[FreeForm, doc("All numbers and names of the sentence.")] = {}
    evidence: Annotated[AdviceEvidence, doc("The runs that it rests on.")] = AdviceEvidence()
    confidence: Annotated[str, doc("low, medium or high.")] = ""
    extrapolated: Annotated[bool, doc("It rests on settings that no run has had.")] = False
    state: Annotated[str, doc("open, held, applied, superseded, refused or expired.")] = ""
    held_because: Annotated[str, doc("Why it is not applied.")] = ""


class JobAdviceStatus(Wire):
    """The present advice."""

    job_kind: Annotated[str, doc("Kind of the job.")] = ""
    job_generation: Annotated[int, doc("Generation of the job that was observed.")] = 0
    mode: Annotated[str, doc("What the Brain may do: advise or apply.")] = ""
    updated: Annotated[datetime | None, doc("Time of the last change.")] = None
    expires: Annotated[datetime | None, doc("Time from which the advice is outdated.")] = None
    history: Annotated[str, doc("Why the history is not available; else empty.")] = ""
    what: Annotated[str, doc("Fields with advice, the first one's numbers follow.")] = ""
    now: Annotated[str, doc("The present number of the first item.")] = ""
    advised: Annotated[str, doc("The advised number of the first item.")] = ""
    why: Annotated[str, doc("The sentence of the first item.")] = ""
    items: Annotated[list[AdviceItem], doc("The advice, the most important first.")] = []


class JobAdvice(Object):
    """Advice on the job of the same name."""

    status: Annotated[JobAdviceStatus, doc("The advice; written by the Brain.")] = JobAdviceStatus()
