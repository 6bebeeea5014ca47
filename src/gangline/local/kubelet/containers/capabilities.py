"""Capabilities of containers: names, the default set, and the set of a security context."""

from collections.abc import Iterable

NAMES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID",
    "SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW",
    "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT",
    "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD",
    "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG",
    "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
)  # fmt: skip
"""In the order of their numbers, from 0 (``linux/capability.h``)."""
DEFAULT = frozenset(
    {
        "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
        "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
    }
)  # fmt: skip
"""The default set of containerd."""
EVERY = "ALL"


def bounding_set(add: Iterable[str], drop: Iterable[str]) -> frozenset[str]:
    """Return the capabilities that a container may have, as containerd does.

    ``ALL`` is applied before single names. Unknown names have no effect.
    """
    added, dropped = set(_plain(add)), set(_plain(drop))
    found = set() if EVERY in dropped else set(DEFAULT)
    if EVERY in added:
        found = set(NAMES)
    return frozenset((found | (added & set(NAMES))) - dropped)


def _plain(names: Iterable[str]) -> list[str]:
    return [name.upper().removeprefix("CAP_") for name in names]


def capability_numbers(names: Iterable[str]) -> tuple[int, ...]:
    """Return the kernel's numbers of capabilities, in order."""
    return tuple(sorted(NAMES.index(name) for name in names))
