"""The namespaces that this machine allows, and the commands that create them.

A chain of util-linux commands ends with the container's command as process 1 of its own process
namespace. Invariant: each link dies with the one before it (PR_SET_PDEATHSIG), so that even a
SIGKILL of the kubelet leaves no process: the namespace kills all of its processes.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from gangline.local.kubelet.runtime import enter_container
from gangline.local.kubelet.runtime.interface import ContainerIdentity

_TOOLS = ("setpriv", "setsid", "unshare", "nsenter", "mount", "sh", "env", "mkdir", "ln")
_NAMESPACES = ("--mount", "--uts", "--ipc", "--pid")
_PARENT_CHECK = (
    '[ "$PPID" = "$1" ] || exit 1; shift; '
    'while [ "$1" != -- ]; do echo 0 >"$1"; shift; done; shift; exec "$@"'
)
"""Exits if the kubelet died before PR_SET_PDEATHSIG was set; then joins the control groups."""
_START_INIT = 'exec 4>&2 2>/dev/null; setpriv --pdeathsig KILL -- "$@" 2>&4 4>&-; exit $?'
"""Starts process 1 of the namespace and exits with its exit code, or 128 and the signal's number.
``unshare --fork`` of util-linux 2.38 turns a SIGKILL into exit code 1.
"""
_AS_ROOT_OF_OWN_USERS = ("--user", "--map-root-user")
_TRIAL = "mount -t proc proc /proc && mount -t tmpfs trial /mnt"
_TRIAL_TIMEOUT_S = 10


class IsolationLevel(StrEnum):
    ROOT = "root"
    """All namespaces, and limits by control groups."""

    USER = "user"
    """All namespaces except the network, inside a user namespace."""

    NONE = "none"
    """A process group only: no mounts, no process namespace."""


@dataclass(frozen=True, slots=True)
class Isolation:
    level: IsolationLevel
    limitation: str = ""
    """The limitations for pods, and the remedy; empty at `Level.ROOT`."""

    def enter_command(self, netns: str | None, procs_files: Sequence[str] = ()) -> list[str]:
        """The commands before a container's setup script.

        ``procs_files`` are the files of the control groups to join.
        """
        guard = _guard(procs_files)
        if self.level is IsolationLevel.NONE:
            return [*_die_with_parent(), *guard]
        users = _AS_ROOT_OF_OWN_USERS if self.level is IsolationLevel.USER else ()
        network = ["nsenter", f"--net={netns}", "--"] if netns and not users else []
        unshare = ["unshare", *users, *_NAMESPACES, "--", "sh", "-c", _START_INIT, "sh"]
        return [*_die_with_parent(), *guard, *network, *unshare]

    def join_command(self, pid: int, procs_files: Sequence[str] = ()) -> list[str]:
        """The commands that run another command inside the container whose process 1 is ``pid``.

        ``procs_files`` are as for `enter_command`.
        """
        if self.level is IsolationLevel.NONE:
            return list(_die_with_parent())
        users = ["--user", "--preserve-credentials"] if self.level is IsolationLevel.USER else []
        # Without root the network is the machine's own: entering it is neither allowed nor needed.
        network = ["--net"] if self.level is IsolationLevel.ROOT else []
        spaces = ["--mount", "--uts", "--ipc", *network, "--pid"]
        # The second setpriv comes after the fork into the process namespace: ending nsenter
        # (when a client hangs up) ends the command as well.
        return [
            *_die_with_parent(),
            *_guard(procs_files),
            *["nsenter", "--target", str(pid), *users, *spaces, "--"],
            *_die_with_parent(),
        ]


@dataclass(frozen=True, slots=True)
class ContainerEntry:
    """The last commands before a container's own: they set its user, environment and root.

    Every user of the machine can read the arguments of a process; only its owner and root can read
    its environment. So each variable travels in the environment of the commands, as
    ``E0=NAME=VALUE``. The commands ignore such names, whatever the container's own names mean to
    them (``LD_PRELOAD``, ``PATH``). ``env --split-string`` replaces ``${E0}`` inside its process.

    Invariant: the user changes before the container's variables are set. Else a variable of the
    dynamic linker would load code of the container into a process of root.
    """

    env: Mapping[str, str]
    root: str = ""
    """The folder that becomes the root; empty retains the machine's root."""

    workdir: str = "/"
    """The working folder below ``root``."""

    identity: ContainerIdentity = field(default_factory=ContainerIdentity)

    def commands(self, more: Mapping[str, str] | None = None) -> tuple[list[str], dict[str, str]]:
        """Return the commands, and the environment that they need; ``more`` adds variables."""
        variables = {**self.env, **(more or {})}
        carried = {
            f"E{number}": f"{name}={value}"
            for number, (name, value) in enumerate(variables.items())
        }
        if not self.identity.changes_nothing:
            return self._enter_as_other_user(len(carried)), carried
        references = " ".join(["--", *(f"${{{name}}}" for name in carried)])
        # The root must be the current folder: the container's user may lack access to its path.
        change = [f"--chdir={self.root}"] if self.root else []
        enter = ["/usr/bin/unshare", "--root=.", f"--wd={self.workdir}", "--"] if self.root else []
        return ["/usr/bin/env", "-i", *change, "-S", references, *enter], carried

    def enter_options(self) -> list[str]:
        """The options of `enter_container.enter`; for an identity that changes something."""
        return self._enter_arguments(0)[1:]

    def _enter_as_other_user(self, variables: int) -> list[str]:
        """The program that changes the root, the user and the capabilities."""
        options = self._enter_arguments(variables)
        libraries = os.environ.get("LD_LIBRARY_PATH")
        prefix = ["/usr/bin/env", f"LD_LIBRARY_PATH={libraries}"] if libraries else []
        # Isolated, and without site packages: it runs as root.
        python = [sys.executable, "-I", "-S", "-B", enter_container.__file__]
        return [*prefix, *python, *options]

    def _enter_arguments(self, variables: int) -> list[str]:
        owner, unchanged = self.identity, enter_container.UNCHANGED
        group = owner.group or 0
        changes_user = owner.user is not None or owner.group is not None
        bounding = owner.capabilities
        return [
            str(variables),
            self.root,
            self.workdir,
            str(owner.user or 0) if changes_user else unchanged,
            str(group),
            ",".join(map(str, dict.fromkeys([group, *owner.groups]))),
            unchanged if bounding is None else ",".join(map(str, bounding)),
            "yes" if owner.no_new_privileges else "",
        ]


@lru_cache(maxsize=1)
def detect_isolation() -> Isolation:
    """Detect what this machine allows, once for each process."""
    if refusal := _try_command(["/usr/bin/env", "-i", "-S", "-- A=b", "true"]):
        return Isolation(
            IsolationLevel.NONE,
            f"containers cannot start: GNU env of coreutils 8.30 or newer is required ({refusal})",
        )
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return Isolation(
            IsolationLevel.NONE, f"commands are missing: {', '.join(missing)} (util-linux)"
        )
    if not (refusal := _try_command(["unshare", *_NAMESPACES, "--fork", "--", "sh", "-c", _TRIAL])):
        return Isolation(IsolationLevel.ROOT)
    own_users = ["unshare", *_AS_ROOT_OF_OWN_USERS, *_NAMESPACES, "--fork", "--"]
    if not (refusal := _try_command([*own_users, "sh", "-c", _TRIAL])):
        return Isolation(IsolationLevel.USER, "not root: pods share the machine's network")
    return Isolation(
        IsolationLevel.NONE,
        f"no permission for namespaces ({refusal}): pods see the machine's files and processes, "
        "volumes and other pods are found only by paths and names in command and environment; "
        f"{_isolation_remedy()}",
    )


def _isolation_remedy() -> str:
    if os.geteuid() != 0:
        return (
            "run as root, or allow user namespaces (sysctl user.max_user_namespaces, "
            "kernel.apparmor_restrict_unprivileged_userns=0)"
        )
    if not _is_root_mounted():
        return (
            "/ is not a mount point, as in a plain chroot: bind its folder to itself "
            "(mount --bind DIR DIR) before chroot DIR"
        )
    return "run where mounts and namespaces are allowed, such as in a privileged container"


def _is_root_mounted() -> bool:
    """Return whether / is a mount point; True if that is unknown."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return True
    # The fifth field is the mount point, relative to the root of this process.
    return any(line.split(" ", 5)[4:5] == ["/"] for line in mounts)


def _guard(procs_files: Sequence[str]) -> list[str]:
    return ["sh", "-c", _PARENT_CHECK, "sh", str(os.getpid()), *procs_files, "--"]


def _die_with_parent() -> tuple[str, ...]:
    return ("setpriv", "--pdeathsig", "KILL", "--") if shutil.which("setpriv") else ()


def _try_command(command: list[str]) -> str:
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=_TRIAL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if run.returncode == 0:
        return ""
    return (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
