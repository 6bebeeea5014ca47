"""Why a job has not started, from its conditions, its pods and events."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from gangline.api.core.pod import Pod
from gangline.api.failure import Blame
from gangline.sdk.events import EventRecord
from gangline.sdk.jobs import Job, JobState

_USER, _NODE, _PLATFORM = Blame.USER, Blame.NODE, Blame.PLATFORM


@dataclass(frozen=True, slots=True)
class PendingCause:
    """The reason why a job is pending."""

    cause: str
    blame: Blame
    meaning: str
    remedy: str
    evidence: str = ""


_PATTERNS: tuple[tuple[str, str, Blame, str, str], ...] = (
    ("ImageNotFound", r"(manifest|repository|image)[^\n]*(not found|unknown|does not exist)",
     _USER, "The registry has no such image.", "Correct --image."),
    ("ImageAccessDenied", r"(?i)(pull|image|registry)[^\n]*(unauthorized|denied|authentication)",
     _USER, "The registry refuses access to the image.",
     "Give a Secret with --image-pull-secret."),
    ("ImageRateLimited", r"toomanyrequests|pull rate limit",
     _PLATFORM, "The registry limits the rate of requests.",
     "Wait, or pull with an account (--image-pull-secret) or from a mirror."),
    ("RegistryUnreachable", r"(?i)(pull|image|registry)[^\n]*(no such host|i/o timeout|dial tcp)",
     _PLATFORM, "The registry cannot be reached.", "Check its name and the node's network."),
    ("InvalidImageName", r"InvalidImageName|couldn't parse image", _USER,
     "The name of the image is invalid.", "Correct --image."),
    ("ImagePullFailed", r"ErrImagePull|ImagePullBackOff|ErrImageNeverPull|Failed to pull image",
     _USER, "The image could not be pulled.", "Check --image and --image-pull-secret."),
    ("SecretMissing", r"(?i)secret \S+ not found|references non-existent secret key",
     _USER, "A Secret of the job does not exist.", "Create it; the job then continues."),
    ("ConfigMapMissing", r"(?i)configmap \S+ not found|non-existent config key",
     _USER, "A ConfigMap of the job does not exist.", "Create it; the job then continues."),
    ("ClaimMissing", r"(?i)persistentvolumeclaim \S+ not found",
     _USER, "A claim that the job mounts does not exist.",
     "Create it; 'gangline data list' shows existing claims."),
    ("ClaimUnbound", r"(?i)unbound (immediate )?persistentvolumeclaims|waiting for a volume",
     _PLATFORM, "A claim has no volume yet.",
     "'kubectl describe pvc' shows why; 'gangline doctor' checks the default storage class."),
    ("MountFailed", r"FailedMount|FailedAttachVolume|MountVolume|Unable to attach or mount",
     _NODE, "A volume cannot be mounted.", "Check the storage system and the folder's name."),
    ("QuotaExceeded", r"exceeded quota|[Qq]uota",
     _USER, "The namespace's or the queue's quota is used up.",
     "Request less, wait, or have the quota raised."),
    ("ServiceAccountMissing", r"(?i)serviceaccount \S+ not found",
     _USER, "The job's service account does not exist.", "Create it."),
    ("PolicyRefused", r"violates PodSecurity|admission webhook \S+ denied|is forbidden",
     _USER, "A policy of the cluster refuses the pods.",
     "Remove the refused options, such as --hostNetwork or --data-dir."),
    ("GpuShortage", r"(?i)insufficient nvidia\.com/gpu|insufficient \S*gpu",
     _PLATFORM, "There are not enough free GPUs.",
     "'gangline explain' shows how many and where; request fewer, or wait."),
    ("MemoryShortage", r"(?i)insufficient memory",
     _PLATFORM, "No node has enough free memory.", "Lower --memory, or wait."),
    ("CpuShortage", r"(?i)insufficient cpu",
     _PLATFORM, "No node has enough free CPU.", "Lower --cpu, or wait."),
    ("TaintNotTolerated", r"untolerated taint|taint[^\n]*(didn't|not) tolerate",
     _USER, "The nodes have a taint that the job does not tolerate.", "Add --toleration."),
    ("NoNodeMatches", r"node\(s\) didn't match|node affinity|node selector|matched no node",
     _USER, "No node has the labels that the job selects.",
     "Correct --selector; 'kubectl get nodes --show-labels' shows them."),
    ("QueueClosed", r"(?i)queue \S* ?is (closed|not open|closing)",
     _USER, "The job's queue is closed.", "'gangline queue open' opens it."),
    ("QueueMissing", r"(?i)(no queue|queue \S+ (does not exist|not found|is missing))",
     _USER, "The job's queue does not exist.", "'gangline queue list' shows the queues."),
    ("NoRoom", r"Unschedulable|0/\d+ nodes are available|FailedScheduling",
     _PLATFORM, "The cluster lacks free resources for the complete gang.",
     "'gangline explain' shows what is short."),
)  # fmt: skip
_COMPILED = tuple((row[0], re.compile(row[1]), *row[2:]) for row in _PATTERNS)


_LOST_RANK = re.compile(r"^\S+ waits for \S+, which ended at (\S+), before")
"""The operator's message about a restarted rank that waits for one that has ended."""


def find_lost_rank(job: Job, now: datetime) -> PendingCause | None:
    """Return the cause of a job that can never end; None if it may."""
    found = None if job.state.finished else _LOST_RANK.match(job.reason)
    if found is None:
        return None
    with suppress(ValueError):
        seconds = (now - datetime.fromisoformat(found[1])).total_seconds()
        since = f"{seconds // 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"
        meaning = job.reason.replace(f"which ended at {found[1]}", f"which ended {since} ago")
        return PendingCause(
            "RankLeft",
            _USER,
            meaning,
            f"Let the ranks end together (torch.distributed.destroy_process_group), and "
            f"'gangline restart {job.name} -n {job.namespace}'. The annotation "
            "gangline.dev/restart=gang restarts all ranks when one fails; "
            "gangline.dev/stalled=restart or =fail acts once a job is stalled.",
            job.reason,
        )
    return None


def find_pending_cause(
    job: Job, pods: Sequence[Pod], events: Sequence[EventRecord]
) -> PendingCause | None:
    """Return why a job is pending; None if no known reason applies."""
    if job.state.finished or job.state is JobState.RUNNING:
        return _failure_of_whole_job(job) if job.state is JobState.FAILED else None
    if job.awaits_former_pods:
        meaning = "The job is resumed, and waits until its former pods have ended."
        return PendingCause("Suspended", _USER, meaning, "", job.reason)
    if job.state is JobState.SUSPENDED:
        remedy = f"'gangline resume {job.name} -n {job.namespace}' resumes it."
        return PendingCause("Suspended", _USER, "The job is suspended.", remedy, job.reason)
    for text in _candidate_texts(job, pods, events):
        if found := _match_pattern(text):
            return found
    if job.managed_elsewhere and not pods:
        return PendingCause(
            "ManagedElsewhere", _PLATFORM, "MultiKueue runs the job in another cluster.",
            "'kubectl describe workloads.kueue.x-k8s.io' shows where and why it waits.", job.reason,
        )  # fmt: skip
    if not pods and not job.reason and not events:
        return PendingCause(
            "NotNoticed", _PLATFORM, "No operator has reacted to the job.",
            "'gangline doctor' shows whether one runs.",
        )  # fmt: skip
    if job.reason:
        return PendingCause("Waiting", _PLATFORM, "The job is pending.", "", job.reason)
    return None


def _failure_of_whole_job(job: Job) -> PendingCause | None:
    """Return the cause of a failure that ended the complete job and left no failed replica."""
    if re.search(r"(?i)active longer than|deadline", job.reason):
        return PendingCause(
            "DeadlineExceeded", _USER, "The job exceeded its time limit.",
            "Raise --running-timeout, or write checkpoints and resume.", job.reason,
        )  # fmt: skip
    if re.search(r"(?i)InvalidSpec|not valid|mistake", job.reason):
        return PendingCause("InvalidSpec", _USER, "The job is invalid.", "Correct it.", job.reason)
    return None


def _candidate_texts(job: Job, pods: Sequence[Pod], events: Sequence[EventRecord]) -> Iterator[str]:
    """Yield messages about the job: the most specific first, of events the newest first."""
    for pod in pods:
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
            if waiting := status.state.waiting:
                yield f"{waiting.reason} {waiting.message}"
    warnings = [each for each in events if each.type == "Warning"]
    yield job.reason
    for each in reversed(warnings):
        yield f"{each.reason} {each.message}"
    for replica in job.replicas:
        yield replica.message


def _match_pattern(text: str) -> PendingCause | None:
    for cause, pattern, blame, meaning, remedy in _COMPILED:
        if pattern.search(text):
            return PendingCause(cause, blame, meaning, remedy, text.strip())
    return None
