"""Messages between a client and the fork server, version 1.

The client passes one end of a connected Unix stream socket to the server. Each message is four
bytes of length, big-endian, and a JSON object. File descriptors come with the first byte of their
message (SCM_RIGHTS); ``descriptors`` is their number. A connection that ends, ends the server; the
processes that it has forked remain.

Requests have an ``op`` and an ``id`` that replies repeat:

``import``
    ``modules``: pairs of a module and an index of ``changes``, or -1 for none. ``changes``:
    variables that the program has set before that import, None for deleted ones. ``varying``: names
    of variables that differ between processes; a module that reads one of them is ``dependent``.
    The reply ``imported`` has the number of ``modules`` and ``dependent`` packages with reasons. A
    server that has imported one of those refuses all forks: start another one without them.

    Optional: ``containers`` (True: the server is to fork processes that become containers of a
    kubelet). Such a server is started with `PLACEHOLDER` as its script. Its reply has
    ``refuses_containers``, a reason or an empty text, and ``files``: what the modules were loaded
    from, as device, inode, size and time of modification by path.

``fork``
    ``version``: of the protocol. ``argv``: the command line, as in ``sys.orig_argv``. ``env``: all
    variables. ``stdio``: indexes of descriptors for 0, 1 and 2; None for the server's. Optional:
    ``wait`` (True: not before all imports are done), ``adopt`` (True: the client is to be the
    parent, as a subreaper or process 1), ``parent`` (process id that the parent must have),
    ``session`` (False: no new session), ``processors``, ``nice``, ``umask``, ``cwd``, ``user``
    (``uid``, ``gid``, ``groups``), ``channel`` (index of the descriptor on which imports are
    reported), ``notes`` (file in which a process writes why it starts again without preloaded
    modules). The reply is ``forked`` with a ``pid``, or ``refused`` with a ``reason``.

    With ``container`` (True) nothing else is read but ``version``. There are four descriptors: a
    file with a `ContainerSpec` as JSON, standard output and error of the container, and the
    writing end of a pipe. ``pid`` is that of a supervisor outside the container: process 1 is its
    child. It writes the exit code (negative for a signal) to the pipe, and kills the container when
    the pipe has no reader any more.

Events without a request: ``ready`` with ``version`` and ``pid``; ``ended`` with ``pid`` and
``code`` (negative for a signal) of a process that was not adopted.
"""

from typing import Any, TypedDict

VERSION = 1
PLACEHOLDER = "/gangline-fork-server/".ljust(4000, "-")
"""The script of a server for many programs. A program has a shorter path."""

VARYING_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "GANGLINE_PROGRESS_FILE",
    "RUNTIME_METRICS_PATH",
    "GANGLINE_STACKS",
)
"""Variables that differ between the workers of a job, or between two attempts."""


class ForkRequest(TypedDict, total=False):
    """A request for a process; see the module's description."""

    argv: list[str]
    env: dict[str, str]
    stdio: list[int | None]
    wait: bool
    adopt: bool
    parent: int
    session: bool
    processors: list[int]
    nice: int
    umask: int
    cwd: str
    user: dict[str, Any]
    channel: int
    notes: str
    container: bool


class _Imports(TypedDict):
    modules: list[tuple[str, int]]
    changes: list[dict[str, str | None]]
    varying: list[str]


class ImportRequest(_Imports, total=False):
    """A request for imports; see the module's description."""

    containers: bool


class SetupScript(TypedDict):
    """A script for ``sh`` that mounts the file system of a container."""

    script: str
    env: dict[str, str]


class EnterProgram(TypedDict):
    """Changes the root, the user and the capabilities.

    ``source`` is a Python module with a function ``enter(options, executes=False)``.
    """

    source: str
    options: list[str]


class ContainerSpec(TypedDict):
    """A container whose process 1 is forked from a server."""

    argv: list[str]
    env: dict[str, str]
    groups: list[str]
    """Files that process 1 writes ``0`` to, in order to join control groups."""
    network: str
    """The network namespace to enter; empty for that of the server."""
    own_users: bool
    """True to create a user namespace in which the server's user is root."""
    setup: SetupScript
    root: str
    """The folder that becomes the root, in the new mount namespace."""
    workdir: str
    enter: EnterProgram | None
    """None leaves user and capabilities as they are."""


class RefusedError(Exception):
    """The server does not fork this process: it would differ from a new one."""
