"""The last step of a container's start: its root, its user, its capabilities, its command.

Runs as a program of its own, as root, with nothing but the standard library. A change of the root
needs a capability that the container must not have, so the root changes first, then the user.
Nothing of the container's environment is in effect before: each variable arrives as
``E0=NAME=VALUE``.

The user is set for all of the process's IDs, so the kernel clears its effective and permitted
capabilities unless it is root.
"""

import ctypes
import os
import signal
import sys
import warnings  # noqa: F401 - needed by os.execvpe, which cannot import it from another root

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 24, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_MAX_CAPABILITIES = 64
EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 126, 127
UNCHANGED = "-"


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def _drop_capabilities(library: ctypes.CDLL, bounding: list[int] | None) -> None:
    """Leave only these capabilities in the bounding set, and none to be inherited."""
    library.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, sets = _Header(_CAPABILITY_VERSION_3, 0), (_Sets * 2)()
    if library.capget(ctypes.byref(header), sets):
        raise OSError(ctypes.get_errno(), "capabilities cannot be read")
    for part in sets:
        part.inheritable = 0
    if library.capset(ctypes.byref(header), sets):
        raise OSError(ctypes.get_errno(), "capabilities cannot be set")
    if bounding is None:
        return
    for number in set(range(_MAX_CAPABILITIES)) - set(bounding):
        library.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # fails beyond the last one


def _limit_to_bounding_set(library: ctypes.CDLL, bounding: list[int]) -> None:
    """Do as ``execve`` does for root: capabilities outside the bounding set are lost."""
    header, sets = _Header(_CAPABILITY_VERSION_3, 0), (_Sets * 2)()
    if library.capget(ctypes.byref(header), sets):
        raise OSError(ctypes.get_errno(), "capabilities cannot be read")
    for index, part in enumerate(sets):
        mask = sum(1 << number - 32 * index for number in bounding if number // 32 == index)
        part.permitted &= mask
        part.effective &= mask
    if library.capset(ctypes.byref(header), sets):
        raise OSError(ctypes.get_errno(), "capabilities cannot be set")


def _become(library: ctypes.CDLL, user: int, group: int, groups: list[int]) -> None:
    os.setgroups(groups)
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    # A change of the user clears it.
    library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _numbers(written: str) -> list[int]:
    return [int(number) for number in written.split(",") if number]


def enter(options: list[str], *, executes: bool = True) -> None:
    """Change the root, the user and the capabilities.

    ``executes`` is False if no ``execve`` follows, which would limit the capabilities of root. The
    options are root (empty: it stays the present one), working folder, user, group, further groups,
    bounding set of capabilities, and a text if the process gets no new privileges. ``UNCHANGED``
    leaves user and group, or the set, as it is.
    """
    root, workdir, user, group, groups, bounding, no_new_privileges = options
    remaining = None if bounding == UNCHANGED else _numbers(bounding)
    library = ctypes.CDLL(None, use_errno=True)
    if root:
        os.chdir(root)
        os.chroot(".")
        os.chdir(workdir)
    _drop_capabilities(library, remaining)
    if user != UNCHANGED:
        _become(library, int(user), int(group), _numbers(groups))
    if no_new_privileges:
        library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if not executes and remaining is not None:
        _limit_to_bounding_set(library, remaining)


def main() -> None:
    """Become the container's command.

    The arguments are the number of variables ``E0``, ``E1``, …, the options of `enter`, and the
    command.
    """
    command = [os.fsencode(variable) for variable in sys.argv[9:]]
    carried = (os.environb[b"E%d" % number] for number in range(int(sys.argv[1])))
    environment = dict(variable.split(b"=", 1) for variable in carried)
    try:
        enter(sys.argv[2:9])
        for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored_by_python, signal.SIG_DFL)
    except OSError as error:
        os.write(2, f"enter: the container cannot be entered: {error}\n".encode())
        os._exit(EXIT_NOT_EXECUTABLE)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        text = b"enter: failed to execute %b: %b\n" % (command[0], str(error.strerror).encode())
        os.write(2, text)
        missing = isinstance(error, FileNotFoundError)
        os._exit(EXIT_NOT_FOUND if missing else EXIT_NOT_EXECUTABLE)


if __name__ == "__main__":
    main()
