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

``fork``
    ``version``: of the protocol. ``argv``: the command line, as in ``sys.orig_argv``. ``env``: all
    variables. ``stdio``: indexes of descriptors for 0, 1 and 2; None for the server's. Optional:
    ``wait`` (True: not before all imports are done), ``adopt`` (True: the client is to be the
    parent, as a subreaper or process 1), ``parent`` (process id that the parent must have),
    ``session`` (False: no new session), ``processors``, ``nice``, ``umask``, ``cwd``, ``user``
    (``uid``, ``gid``, ``groups``), ``channel`` (index of the descriptor on which imports are
    reported), ``notes`` (file in which a process writes why it starts again without preloaded
    modules). The reply is ``forked`` with a ``pid``, or ``refused`` with a ``reason``.

Events without a request: ``ready`` with ``version`` and ``pid``; ``ended`` with ``pid`` and
``code`` (negative for a signal) of a process that was not adopted.
"""

from typing import Any, TypedDict

VERSION = 1


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


class ImportRequest(TypedDict):
    """A request for imports; see the module's description."""

    modules: list[tuple[str, int]]
    changes: list[dict[str, str | None]]
    varying: list[str]


class RefusedError(Exception):
    """The server does not fork this process: it would differ from a new one."""
