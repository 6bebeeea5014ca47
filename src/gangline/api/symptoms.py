"""Known failures by their lines in logs, with meaning and remedy. The documentation lists this
table.

The first pattern that matches counts, so precise patterns come first. A line that only reports the
loss of another replica is a consequence: the cause is searched at other replicas first.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gangline.api.failure import Blame

_CODE, _USER, _NODE, _PLATFORM = Blame.CODE, Blame.USER, Blame.NODE, Blame.PLATFORM


@dataclass(frozen=True, slots=True)
class Symptom:
    """A kind of failure that a log line shows."""

    cause: str
    """One CamelCase word; stable, for programs."""
    pattern: re.Pattern[str]
    blame: Blame
    meaning: str
    remedy: str
    consequence: bool = False
    """The line reports that another replica failed before."""


def _symptom(
    cause: str, pattern: str, blame: Blame, meaning: str, remedy: str, *, consequence: bool = False
) -> Symptom:
    return Symptom(cause, re.compile(pattern), blame, meaning, remedy, consequence)


SYMPTOMS: Sequence[Symptom] = (
    _symptom(
        "GpuOutOfMemory",
        r"(CUDA|HIP|NPU|XPU) out of memory|torch\.(cuda\.)?OutOfMemoryError"
        r"|(CUDA|HIP) error: out of memory"
        r"|RESOURCE_EXHAUSTED.*(GPU|HBM)",
        _CODE,
        "The GPU has too little memory.",
        "Use a smaller batch, gradient checkpointing or sharding, or a larger GPU.",
    ),
    _symptom(
        "SharedMemoryFull",
        r"insufficient shared memory|DataLoader worker .* killed by signal: Bus error"
        r"|unable to (write to|open|resize) (file|shared memory)[^\n]*/torch_",
        _USER,
        "/dev/shm is too small for the batches of the data loaders.",
        "Increase --share-memory, such as 16Gi, or use fewer data loader workers.",
    ),
    _symptom(
        "DiskFull",
        r"No space left on device|\bENOSPC\b",
        _NODE,
        "A disk or volume is full.",
        "Delete old checkpoints, enlarge the claim, or write to another volume.",
    ),
    _symptom(
        "DiskQuotaExceeded",
        r"Disk quota exceeded",
        _USER,
        "The quota of the file system is used up.",
        "Delete old files, or ask for a larger quota.",
    ),
    _symptom(
        "ReadOnlyVolume",
        r"Read-only file system",
        _USER,
        "The program writes to a read-only file system.",
        "Write to a --data claim or to /tmp.",
    ),
    _symptom(
        "GpuFault",
        r"uncorrectable ECC|fallen off the bus|NVRM: Xid|unspecified launch failure",
        _NODE,
        "The GPU itself has failed.",
        "Have the node checked and cordoned ('kubectl cordon NODE'); other nodes can run the job.",
    ),
    _symptom(
        "DriverTooOld",
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old",
        _NODE,
        "The GPU driver of the node is too old for the image.",
        "Use an image with an older CUDA, or nodes with a newer driver (--selector).",
    ),
    _symptom(
        "NoGpu",
        r"No CUDA GPUs are available|no CUDA-capable device|Found no NVIDIA driver"
        r"|Torch not compiled with CUDA enabled",
        _USER,
        "The program needs a GPU and finds none.",
        "Request one with --gpus, and use an image that is built for GPUs.",
    ),
    _symptom(
        "GpuProgramError",
        r"device-side assert triggered|an illegal memory access was encountered",
        _CODE,
        "A kernel on the GPU made an invalid access, often an index out of range.",
        "Run with CUDA_LAUNCH_BLOCKING=1 to find the call.",
    ),
    _symptom(
        "CollectiveTimeout",
        r"Watchdog caught collective operation timeout|NCCL[^\n]*(timed out|timeout)"
        r"|Timed out waiting \d+ms for (recv|send)",
        _CODE,
        "Not all ranks joined a collective operation in time.",
        "Check the rank that is behind or waits elsewhere: ranks must make the same calls.",
        consequence=True,
    ),
    _symptom(
        "PeerLost",
        r"ncclRemoteError|Connection closed by (remote )?peer|Connection reset by peer"
        r"|(gloo|Gloo)[^\n]*(reset|closed)|Broken pipe|Socket closed|heartbeat timeout",
        _PLATFORM,
        "The connection to another replica was lost.",
        "Check the replica that failed first.",
        consequence=True,
    ),
    _symptom(
        "NcclError",
        r"nccl(UnhandledCuda|System|Internal|InvalidUsage|InvalidArgument)Error|NCCL error",
        _NODE,
        "NCCL failed.",
        "Run with NCCL_DEBUG=INFO; check interfaces (NCCL_SOCKET_IFNAME), RDMA and /dev/shm.",
    ),
    _symptom(
        "GitServerUnreachable",
        r"fatal: unable to access '[^']*': (Failed|Could not|Couldn't|Recv|Operation|Empty)",
        _USER,
        "The git server is unreachable from the cluster.",
        "Check --sync-source: pods must be able to reach the address.",
    ),
    _symptom(
        "NameNotResolved",
        r"Name or service not known|Temporary failure in name resolution|Could not resolve host"
        r"|nodename nor servname provided|getaddrinfo failed",
        _PLATFORM,
        "A name could not be resolved.",
        "Check the name, and the cluster's DNS with 'gangline doctor'.",
    ),
    _symptom(
        "PortInUse",
        r"Address already in use|EADDRINUSE",
        _USER,
        "A port is already in use.",
        "Use another port; with --hostNetwork all pods of a node share its ports.",
    ),
    _symptom(
        "RendezvousTimeout",
        r"RendezvousTimeoutError|waiting for clients|client socket has timed out"
        r"|wait timeout after \d+ms",
        _PLATFORM,
        "The replicas did not find each other in time.",
        "Check that all of them run ('gangline get JOB'), and use the job's MASTER_ADDR.",
        consequence=True,
    ),
    _symptom(
        "ConnectionRefused",
        r"Connection refused|ECONNREFUSED",
        _PLATFORM,
        "No process listened at the address.",
        "Check that the other side runs, and that the port is right.",
        consequence=True,
    ),
    _symptom(
        "GitAccessDenied",
        r"Authentication failed for|could not read Username|Permission denied \(publickey\)",
        _USER,
        "The git server refused user name and password.",
        "Give GIT_SYNC_USERNAME and GIT_SYNC_PASSWORD with --env; they are stored in a Secret.",
    ),
    _symptom(
        "GitRepositoryMissing",
        r"repository '[^']*' not found|does not appear to be a git repository"
        r"|fatal: repository '[^']*' does not exist",
        _USER,
        "The git repository does not exist.",
        "Check --sync-source.",
    ),
    _symptom(
        "GitRevisionMissing",
        r"Remote branch \S+ not found|pathspec '[^']*' did not match",
        _USER,
        "The repository has no such branch or revision.",
        "Check GIT_SYNC_BRANCH and GIT_SYNC_REV.",
    ),
    _symptom(
        "CertificateRefused",
        r"certificate verify failed|SSL certificate problem|x509: certificate",
        _USER,
        "The certificate of a server is not trusted.",
        "Add its CA to the image, or mount the CA with --config-file.",
    ),
    _symptom(
        "AccessDenied",
        r"\b401 (Client Error|Unauthorized)|\b403 (Client Error|Forbidden)|AccessDenied",
        _USER,
        "A server refused access.",
        "Give credentials with --secret VARIABLE=SECRET/KEY.",
    ),
    _symptom(
        "LibraryMismatch",
        r"undefined symbol|GLIBC\S* not found|cannot open shared object file|DLL load failed",
        _USER,
        "A library is missing in the image, or incompatible with another one.",
        "Install compatible versions; build the image from a framework's own image.",
    ),
    _symptom(
        "ModuleMissing",
        r"ModuleNotFoundError: [^\n]*|ImportError: [^\n]*",
        _USER,
        "A Python module is not installed in the image, or not on the import path.",
        "Install it in the image, or set PYTHONPATH with --env.",
    ),
    _symptom(
        "SyntaxError",
        r"(SyntaxError|IndentationError|TabError): [^\n]*",
        _CODE,
        "The program is not valid Python.",
        "Correct this line.",
    ),
    _symptom(
        "ArgumentsRefused",
        r"error: (unrecognized arguments|the following arguments are required|argument )[^\n]*",
        _USER,
        "The program refused its arguments.",
        "Correct the command.",
    ),
    _symptom(
        "CheckpointMismatch",
        r"Error\(s\) in loading state_dict|size mismatch for [^\n]*",
        _USER,
        "The checkpoint belongs to another model.",
        "Load a checkpoint of this model, or start in an empty folder.",
    ),
    _symptom(
        "CheckpointBroken",
        r"PytorchStreamReader failed|failed finding central directory|invalid load key"
        r"|unexpected EOF, expected",
        _PLATFORM,
        "A checkpoint is incomplete, as after a crash during the write.",
        "Resume from the previous one; write to a temporary name and rename the complete file.",
    ),
    _symptom(
        "TooManyOpenFiles",
        r"Too many open files",
        _USER,
        "The limit of open files is reached.",
        "Use torch.multiprocessing.set_sharing_strategy('file_system'), or raise ulimit -n.",
    ),
    _symptom(
        "ThreadsExhausted",
        r"can't start new thread|pthread_create failed|fork: [^\n]*unavailable",
        _NODE,
        "The limit of threads or processes is reached.",
        "Set OMP_NUM_THREADS, use fewer data loader workers, or raise the pod's process limit.",
    ),
    _symptom(
        "HostOutOfMemory",
        r"\bMemoryError\b|Cannot allocate memory|std::bad_alloc"
        r"|DefaultCPUAllocator: (can't|not enough)[^\n]*",
        _USER,
        "The pod has too little memory.",
        "Raise --memory, or use less memory.",
    ),
    _symptom(
        "MpiSlotsMissing",
        r"not enough slots available",
        _USER,
        "mpirun was started with more processes than the workers have slots.",
        "Raise --workers or --slots-per-worker, or lower -n.",
    ),
    _symptom(
        "MpiLaunchFailed",
        r"ORTE (was unable|does not know)|PRTE has lost|unable to reliably start one or more",
        _PLATFORM,
        "mpirun could not start its processes on the workers.",
        "Check that all workers run, and that all images have the same Open MPI.",
    ),
    _symptom(
        "LossNotANumber",
        r"(?i)loss (is|was|became) (nan|inf)|FloatingPointError|(?i:nan) detected",
        _CODE,
        "The training has diverged.",
        "Lower the learning rate, clip gradients, or check the data.",
    ),
    _symptom(
        "PermissionDenied",
        r"PermissionError: [^\n]*|Permission denied",
        _USER,
        "The user of the container may not read or write a file.",
        "Check its owner, or run as that user.",
    ),
    _symptom(
        "FileMissing",
        r"FileNotFoundError: [^\n]*|can't open file '[^']*'|No such file or directory[^\n]*"
        r"|there is no script [^\n]*",
        _USER,
        "A file does not exist.",
        "Check the path, the mounts (--data) and the working folder (--working-dir).",
    ),
    _symptom(
        "ShapeMismatch",
        r"shapes cannot be multiplied|size of tensor [^\n]* must match|Expected input batch_size",
        _CODE,
        "The shapes of tensors do not match.",
        "Check the model against the data.",
    ),
    _symptom(
        "PythonError",
        r"(?m)^(?:\[rank\d+\]: ?)?[A-Za-z_][\w.]*(?:Error|Exception): [^\n]*",
        _CODE,
        "The program raised an error.",
        "See the traceback in the log.",
    ),
)


def find_symptom(text: str) -> tuple[Symptom, str] | None:
    """Return the symptom at the end of a log, and its line; None if no pattern matches.

    Causes come before consequences. An error whose line only reports the loss of another replica is
    a consequence, whatever its name.
    """
    matches = list(_matches(text))
    lines = {line for symptom, line in matches if symptom.consequence}
    causes = [match for match in matches if not match[0].consequence and match[1] not in lines]
    return next(iter([*causes, *matches]), None)


def _matches(text: str) -> Iterator[tuple[Symptom, str]]:
    for symptom in SYMPTOMS:
        for match in symptom.pattern.finditer(text):
            line = _line_at(text, match.start(), match.end())
            if symptom.cause == "PythonError" and _is_consequence(line):
                continue
            yield symptom, line
            break


def _is_consequence(line: str) -> bool:
    return any(symptom.consequence and symptom.pattern.search(line) for symptom in SYMPTOMS)


def _line_at(text: str, start: int, end: int) -> str:
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    return text[first : len(text) if last < 0 else last].strip()
