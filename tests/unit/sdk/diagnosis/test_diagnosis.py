"""Diagnosis of injected failures: each cause is recognised, and the root is not a consequence."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gangline.api.core.pod import Pod
from gangline.api.failure import AGENT_CAUSES
from gangline.api.job_names import NOT_ALL_PODS_RAN, RUNS_AGAIN
from gangline.api.jobs.kubeflow import PyTorchJob
from gangline.api.symptoms import pending_causes, symptoms
from gangline.api.volcano.scheduling import PodGroup
from gangline.cli.commands.diagnose import format_diagnosis
from gangline.sdk import diagnosis
from gangline.sdk.diagnosis import Diagnosis, diagnose, diagnosis_data
from gangline.sdk.events import EventRecord
from gangline.sdk.jobs import Job, build_job
from gangline.sdk.kinds import JOB_KINDS

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
ROLE = "training.kubeflow.org/replica-type"
INDEX = "training.kubeflow.org/replica-index"


def stamp(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def a_pod(replica: str, status: dict[str, Any], node: str = "n1") -> Pod:
    role, _, index = replica.partition("-")
    return msgspec.convert(
        {
            "metadata": {
                "name": f"j-{replica}",
                "namespace": "team",
                "labels": {ROLE: role, INDEX: index},
            },
            "spec": {"nodeName": node, "containers": [{"name": "pytorch"}]},
            "status": status,
        },
        Pod,
        strict=False,
    )


def ended(replica: str, code: int, reason: str = "Error", at: float = 0, **more: Any) -> Pod:
    state = {"exitCode": code, "reason": reason, "finishedAt": stamp(at), **more}
    container = {"name": "pytorch", "state": {"terminated": state}}
    return a_pod(replica, {"phase": "Failed", "containerStatuses": [container]})


def waits(replica: str, reason: str, message: str = "") -> Pod:
    state = {"waiting": {"reason": reason, "message": message}}
    container = {"name": "pytorch", "state": state}
    return a_pod(replica, {"phase": "Pending", "containerStatuses": [container]})


def lost(replica: str, reason: str, message: str = "") -> Pod:
    return a_pod(replica, {"phase": "Failed", "reason": reason, "message": message})


def disrupted(replica: str, reason: str) -> Pod:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    return a_pod(replica, {"phase": "Failed", "conditions": [condition]})


def warned(reason: str, message: str, subject: str = "pod/j-worker-0") -> EventRecord:
    return EventRecord(NOW, "Warning", subject, reason, message, 1)


def a_job(*conditions: tuple[str, str], waits_for: str = "", **policy: str) -> Job:
    stored = msgspec.convert(
        {
            "metadata": {"name": "j", "namespace": "team", "uid": "u"},
            "spec": {
                "runPolicy": policy,
                "pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}},
            },
            "status": {
                "conditions": [
                    {"type": type_, "status": "True", "message": message}
                    for type_, message in conditions
                ]
            },
        },
        PyTorchJob,
        strict=False,
    )
    unschedulable = {"type": "Unschedulable", "status": "True", "message": waits_for}
    group = {"metadata": {"name": "j"}, "status": {"conditions": [unschedulable]}}
    groups = [msgspec.convert(group, PodGroup, strict=False)] if waits_for else []
    return build_job(JOB_KINDS[0], stored, [], groups)


FAILED = a_job(("Created", ""), ("Failed", "pods failed"))
PENDING = a_job(("Created", ""))


def by_log(text: str, code: int = 1) -> Diagnosis:
    return diagnose(FAILED, [ended("worker-1", code)], (), {"j-worker-1": text})


TRACEBACK = "Traceback (most recent call last):\n  File 'train.py', line 3\n"

LOGS = {
    "GpuOutOfMemory": f"{TRACEBACK}torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB",
    "SharedMemoryFull": f"{TRACEBACK}RuntimeError: DataLoader worker (pid 7) is killed by "
    "signal: Bus error. It is possible that dataloader's workers are out of shared memory. "
    "insufficient shared memory (shm)",
    "DiskFull": f"{TRACEBACK}OSError: [Errno 28] No space left on device: '/ckpt/1.pt'",
    "DiskQuotaExceeded": f"{TRACEBACK}OSError: [Errno 122] Disk quota exceeded",
    "ReadOnlyVolume": f"{TRACEBACK}OSError: [Errno 30] Read-only file system: '/data/x'",
    "GpuFault": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "DriverTooOld": "RuntimeError: The NVIDIA driver on your system is too old (found 11040).",
    "NoGpu": "RuntimeError: No CUDA GPUs are available",
    "GpuProgramError": "RuntimeError: CUDA error: device-side assert triggered",
    "CollectiveTimeout": "[rank1]:[E] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=5, OpType=ALLREDUCE) ran for 600029 milliseconds before timing out.",
    "PeerLost": "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer",
    "NcclError": "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, "
    "unhandled system error, ncclSystemError: System call failed",
    "NameNotResolved": "socket.gaierror: [Errno -2] Name or service not known",
    "PortInUse": "torch.distributed.DistNetworkError: The server socket has failed to listen: "
    "EADDRINUSE",
    "RendezvousTimeout": "torch.distributed.DistStoreError: Timed out after 901 seconds waiting "
    "for clients. 1/4 clients joined.",
    "ConnectionRefused": "ConnectionRefusedError: [Errno 111] Connection refused",
    "GitAccessDenied": "remote: no\nfatal: Authentication failed for 'https://h/c.git/'",
    "GitRepositoryMissing": "fatal: repository 'https://h/c.git/' not found",
    "GitRevisionMissing": "warning: Could not find it\nfatal: Remote branch dev not found",
    "GitServerUnreachable": "fatal: unable to access 'http://h/c.git/': Failed to connect to h",
    "CertificateRefused": "ssl.SSLCertVerificationError: certificate verify failed: self-signed",
    "AccessDenied": "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: h",
    "LibraryMismatch": "ImportError: /lib/x.so: undefined symbol: _ZN2at",
    "ModuleMissing": f"{TRACEBACK}ModuleNotFoundError: No module named 'einops'",
    "SyntaxError": "  File 'x.py', line 1\nSyntaxError: invalid syntax",
    "ArgumentsRefused": "train.py: error: unrecognized arguments: --lrr 1",
    "CheckpointMismatch": "RuntimeError: Error(s) in loading state_dict for Net: size mismatch",
    "CheckpointBroken": "RuntimeError: PytorchStreamReader failed reading zip archive",
    "TooManyOpenFiles": "OSError: [Errno 24] Too many open files",
    "ThreadsExhausted": "RuntimeError: can't start new thread",
    "HostOutOfMemory": "RuntimeError: DefaultCPUAllocator: can't allocate memory: 8 GB",
    "MpiSlotsMissing": "There are not enough slots available in the system to satisfy the 8",
    "MpiLaunchFailed": "ORTE was unable to reliably start one or more daemons.",
    "LossNotANumber": "step 12\nValueError: loss is nan",
    "PermissionDenied": "PermissionError: [Errno 13] Permission denied: '/data/x'",
    "FileMissing": "FileNotFoundError: [Errno 2] No such file or directory: '/data/train'",
    "ShapeMismatch": "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
    "PythonError": f"{TRACEBACK}KeyError: 'label'",
}


@pytest.mark.parametrize("cause", LOGS)
def test_failures_are_distinguished_by_output(cause: str) -> None:
    found = by_log(LOGS[cause])
    assert found.root is not None
    assert (found.root.cause, found.root.replica) == (cause, "worker-1")
    assert found.root.evidence in LOGS[cause]
    assert found.root.remedy


def test_every_symptom_of_the_table_is_tested() -> None:
    assert {each.cause for each in symptoms()} == set(LOGS)


STATUSES: dict[str, Pod] = {
    "OutOfMemory": ended("worker-1", 137, "OOMKilled"),
    "Killed": ended("worker-1", 137),
    "SegmentationFault": ended("worker-1", 139),
    "IllegalInstruction": ended("worker-1", 132),
    "BusError": ended("worker-1", 135),
    "Aborted": ended("worker-1", 134),
    "Terminated": ended("worker-1", 143),
    "CommandNotFound": ended("worker-1", 127),
    "NotExecutable": ended("worker-1", 126),
    "CannotStart": ended("worker-1", 128, "StartError"),
    "UsageError": ended("worker-1", 2),
    "Error": ended("worker-1", 17),
    "Evicted": lost("worker-1", "Evicted", "The node was low on resource: memory."),
    "NodeLost": lost("worker-1", "NodeLost"),
    "NodeShutdown": lost("worker-1", "Shutdown"),
    "NodeFull": lost("worker-1", "OutOfmemory"),
    "DeviceUnavailable": lost("worker-1", "UnexpectedAdmissionError"),
    "DeadlineExceeded": lost("worker-1", "DeadlineExceeded"),
    "Preempted": disrupted("worker-1", "PreemptionByScheduler"),
    "NodeTainted": disrupted("worker-1", "DeletionByTaintManager"),
    "Drained": disrupted("worker-1", "EvictionByEvictionAPI"),
}


@pytest.mark.parametrize("cause", STATUSES)
def test_failures_are_distinguished_by_pod_status(cause: str) -> None:
    found = diagnose(FAILED, [STATUSES[cause]])
    assert found.root is not None
    assert (found.root.cause, found.root.replica) == (cause, "worker-1")


def scheduling(text: str) -> Diagnosis:
    return diagnose(a_job(("Created", ""), waits_for=text), [])


WAITS: dict[str, Diagnosis] = {
    "ImageNotFound": diagnose(
        PENDING, [waits("master-0", "ErrImagePull", "manifest for x:1 not found: unknown")]
    ),
    "ImageAccessDenied": diagnose(
        PENDING, [waits("master-0", "ImagePullBackOff", "pull access denied for x")]
    ),
    "ImageRateLimited": diagnose(
        PENDING, [waits("master-0", "ErrImagePull", "toomanyrequests: slow down")]
    ),
    "RegistryUnreachable": diagnose(
        PENDING, [waits("master-0", "ErrImagePull", "failed to pull: dial tcp: i/o timeout")]
    ),
    "InvalidImageName": diagnose(PENDING, [waits("master-0", "InvalidImageName")]),
    "ImagePullFailed": diagnose(PENDING, [waits("master-0", "ImagePullBackOff")]),
    "SecretMissing": diagnose(
        PENDING, [waits("master-0", "CreateContainerConfigError", 'secret "vault" not found')]
    ),
    "ConfigMapMissing": diagnose(
        PENDING, [waits("master-0", "CreateContainerConfigError", 'configmap "c" not found')]
    ),
    "ClaimMissing": scheduling('persistentvolumeclaim "data" not found'),
    "ClaimUnbound": scheduling("pod has unbound immediate PersistentVolumeClaims"),
    "MountFailed": diagnose(PENDING, [], [warned("FailedMount", "MountVolume.SetUp failed")]),
    "QuotaExceeded": diagnose(
        PENDING, [], [warned("FailedCreatePod", "pods is forbidden: exceeded quota: q, used 4")]
    ),
    "ServiceAccountMissing": diagnose(
        PENDING, [], [warned("FailedCreatePod", 'serviceaccount "robot" not found')]
    ),
    "PolicyRefused": diagnose(
        PENDING, [], [warned("FailedCreatePod", 'violates PodSecurity "restricted": hostPath')]
    ),
    "GpuShortage": scheduling("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
    "MemoryShortage": scheduling("0/3 nodes are available: 3 Insufficient memory."),
    "CpuShortage": scheduling("0/3 nodes are available: 3 Insufficient cpu."),
    "TaintNotTolerated": scheduling("0/3 nodes are available: 3 node(s) had untolerated taint."),
    "NoNodeMatches": scheduling("0/3 nodes are available: 3 node(s) didn't match selector."),
    "QueueClosed": scheduling("queue 'team' is closed"),
    "QueueMissing": scheduling("queue 'team' does not exist"),
    "NoRoom": scheduling("0/3 nodes are available: something else"),
    "Suspended": diagnose(a_job(("Suspended", "held")), []),
    "ManagedElsewhere": diagnose(a_job(managedBy="kueue.x-k8s.io/multikueue"), []),
    "NotNoticed": diagnose(a_job(), []),
    "Waiting": scheduling("the moon is not full"),
    "DeadlineExceeded": diagnose(a_job(("Failed", "the job was active longer than 60 s")), []),
}


@pytest.mark.parametrize("cause", WAITS)
def test_pending_causes_are_distinguished(cause: str) -> None:
    root = WAITS[cause].root
    assert root is not None
    assert root.cause == cause
    assert cause in WAITS[cause].summary


def test_deadline_does_not_hide_why_containers_could_not_be_created() -> None:
    reason = 'CreateContainerConfigError: secret "token" not found'
    late = f"PyTorchJob j was active longer than its deadline.{NOT_ALL_PODS_RAN}j-0: {reason}"
    root = diagnose(a_job(("Failed", late)), []).root
    assert root is not None
    assert root.cause == "SecretMissing"


def test_resumed_job_that_waits_for_its_former_pods_needs_no_remedy() -> None:
    waits = diagnose(
        a_job(("Suspended", "PyTorchJob j resumes when its former pods have ended.")), []
    )
    assert waits.root is not None
    assert (waits.root.cause, waits.root.remedy) == ("Suspended", "")


def test_job_that_runs_again_is_not_taken_for_one_without_failures() -> None:
    again = a_job(("Running", f"PyTorchJob team/j{RUNS_AGAIN}j-worker-1: Hang: rank 1 waits"))
    assert "restarted because j-worker-1: Hang: rank 1 waits" in diagnose(again, []).summary
    runs = a_job(("Running", "PyTorchJob team/j is running."))
    assert diagnose(runs, []).summary == "The job runs, and nothing has failed."
    in_place = warned("WorkersFailed", "node 1: Hang: rank 1 is at train.py:6", "elasticjob/j")
    assert "rank 1 is at train.py:6" in diagnose(runs, [], [in_place]).summary


def test_the_replica_that_failed_first_is_the_root() -> None:
    pods = [ended("worker-0", 1, at=9), ended("worker-2", 1, at=3), ended("master-0", 1, at=5)]
    tails = dict.fromkeys(("j-worker-0", "j-worker-2", "j-master-0"), LOGS["PythonError"])
    found = diagnose(FAILED, pods, (), tails)
    assert found.root is not None
    assert found.root.replica == "worker-2"
    assert [each.replica for each in found.consequences] == ["master-0", "worker-0"]


def test_replica_that_lost_peer_is_never_root() -> None:
    pods = [
        ended("master-0", 1, at=1), ended("worker-0", 143, at=2),
        ended("worker-1", 137, "OOMKilled", at=8), ended("worker-2", 134, at=3),
    ]  # fmt: skip
    tails = {
        "j-master-0": LOGS["PeerLost"], "j-worker-0": LOGS["PythonError"],
        "j-worker-2": LOGS["CollectiveTimeout"],
    }  # fmt: skip
    found = diagnose(FAILED, pods, (), tails)
    assert found.root is not None
    assert (found.root.replica, found.root.cause) == ("worker-1", "OutOfMemory")
    assert all(each.consequence for each in found.consequences)
    assert "--memory" in found.next_steps[0]


def test_an_error_of_ones_own_counts_more_than_what_followed_from_it() -> None:
    text = f"{LOGS['PythonError']}\n{LOGS['PeerLost']}"
    found = by_log(text).root
    assert found is not None
    assert (found.cause, found.evidence) == ("PythonError", "KeyError: 'label'")


def test_the_end_before_the_last_restart_counts() -> None:
    last = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": stamp(1)}}
    container = {"name": "pytorch", "state": {"running": {}}, "lastState": last, "restartCount": 1}
    pod = a_pod("worker-0", {"phase": "Running", "containerStatuses": [container]})
    found = diagnose(a_job(("Running", "")), [pod])
    assert found.root is not None
    assert found.root.cause == "OutOfMemory"


def test_last_lines_are_those_of_the_pod_of_a_rank_that_failed_first() -> None:
    first, later = ended("worker-1", 1, at=1), ended("worker-1", 1, at=9)
    named = msgspec.structs.replace(later.metadata, name="j-worker-7")
    later = msgspec.structs.replace(later, metadata=named)
    tails = {"j-worker-1": "first", "j-worker-7": "later"}
    assert diagnose(FAILED, [first, later], (), tails).last_lines == ("first",)


def test_deleted_pods_are_known_from_events() -> None:
    events = [warned("Evicted", "low on memory", "pod/j-worker-2")]
    found = diagnose(FAILED, [], events)
    assert found.root is not None
    assert (found.root.replica, found.root.cause) == ("worker-2", "Evicted")


def test_a_job_that_is_well_is_left_alone() -> None:
    running = a_pod("master-0", {"phase": "Running"})
    assert diagnose(a_job(("Running", "")), [running]).root is None
    assert "succeeded" in diagnose(a_job(("Succeeded", "")), []).summary
    assert "replicas are deleted" in diagnose(FAILED, []).summary


def test_a_diagnosis_is_shown_with_cause_evidence_consequences_and_next_step() -> None:
    pods = [ended("worker-1", 1, at=1), *(ended(f"worker-{n}", 143, at=2) for n in range(2, 14))]
    found = diagnose(FAILED, pods, (), {"j-worker-1": LOGS["ModuleMissing"]})
    text = format_diagnosis(found)
    for word in ("worker-1 on n1: ModuleMissing (exit code 1)", "'einops'", "and 4 more",
                 "gangline logs j -i worker-1 -n team"):  # fmt: skip
        assert word in text
    data = diagnosis_data(found)
    assert data["root"]["cause"] == "ModuleMissing"
    assert len(data["consequences"]) == 12


def test_the_documentation_lists_every_cause() -> None:
    page = (Path(__file__).parents[4] / "docs" / "causes.md").read_text()
    causes = {*LOGS, *STATUSES, *WAITS, *AGENT_CAUSES}
    causes |= {each.cause for each in pending_causes()}
    assert sorted(cause for cause in causes if f"`{cause}`" not in page) == []


LIBRARY = (
    '  File "/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward'
)
OWN = ['  File "/root/train.py", line 12, in step', "    return model(batch)"]
ERROR = "RuntimeError: shapes cannot be multiplied"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(["a", "b"], ["a", "b"], id="no traceback"),
        pytest.param(
            ["x", *OWN, *(f"{LIBRARY} {number}" for number in range(9)), ERROR],
            [*OWN, "  ...", *(f"{LIBRARY} {number}" for number in range(5, 9)), ERROR],
            id="own frame above many of a library",
        ),
        pytest.param(
            ["x", *OWN, "1", "2", ERROR], [*OWN, "1", "2", ERROR], id="own frame at the end"
        ),
    ],
)
def test_last_lines_have_the_last_own_frame(log: list[str], expected: list[str]) -> None:
    assert diagnosis.last_lines("\n".join(log)) == expected


def test_a_job_that_nothing_has_looked_at_names_the_check_of_the_components() -> None:
    unseen = a_pod("master-0", {"phase": "Pending"})
    assert "'gangline doctor' checks" in diagnose(PENDING, [unseen]).summary
