"""Runs inside every Python worker, before the interpreter runs the training script.

The agent puts this folder first on ``PYTHONPATH``; ``site`` then imports this file. The file
removes every trace of itself: environment variables and entries of ``sys.path``. A site
customization of the user is run as usual. Then it does one of three things:

- in a worker that starts immediately, report what it imports;
- in a fork server, import what the script will import, and fork workers on request; only the
  workers go on from here. The workers of an agent have the modules of this hook from the start;
  containers (mode ``containers``) do not have them;
- in an interpreter of the node check, run tests in forks, then wait for the order to become a
  worker.

The interpreter itself runs the script, so ``__main__``, ``sys.argv`` and tracebacks are the real
ones. Only the standard library is used: the interpreter may not be the agent's, so nothing of
Gangline can be imported here.
"""

import os
import sys

TYPE_CHECKING = False  # the script may not need typing, so it is not imported
if TYPE_CHECKING:
    from typing import Any

_VARIABLE = "GANGLINE_WORKER_HOOK"


def _main() -> bool:
    """Act as the agent requests. Returns True if the user's site customization has run."""
    folder = os.path.dirname(__file__)
    mode, descriptor = os.environ.pop(_VARIABLE).split(":")
    _hide(folder)
    at_start = frozenset(sys.modules) - {"sitecustomize"}
    server: Any = None
    try:
        sys.path.insert(0, folder)
        import gangline_worker_hook as hook  # type: ignore[import-not-found,unused-ignore]

        sys.modules.pop("gangline_worker_hook")
        baseline = frozenset(sys.modules) - {"sitecustomize"}
        if mode in ("server", "containers"):
            import gangline_fork_server  # type: ignore[import-not-found,unused-ignore]

            server = gangline_fork_server
    finally:
        sys.path.remove(folder)
        sys.path_importer_cache.pop(folder, None)
        for name in [name for name in sys.modules if name.startswith("gangline_")]:
            del sys.modules[name]
    if mode == "containers":
        # The programs import their own: these imports are not recorded.
        baseline = at_start
        for name in frozenset(sys.modules) - at_start - {"sitecustomize"}:
            del sys.modules[name]
    try:
        if server is not None:
            hook.run_server(server, int(descriptor), baseline)
            return True
        hook.run(mode, int(descriptor))
    except BaseException:
        # ``site`` prints an error raised here and runs the script anyway. That is right for a
        # worker, but a process that waits for orders must not train.
        if mode in ("spare", "server", "containers"):
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        raise
    return False


def _hide(folder: str) -> None:
    paths = os.environ["PYTHONPATH"].split(os.pathsep, 1)
    if len(paths) > 1:
        os.environ["PYTHONPATH"] = paths[1]
    else:
        del os.environ["PYTHONPATH"]
    while folder in sys.path:
        sys.path.remove(folder)
    sys.path_importer_cache.pop(folder, None)


def _run_user_sitecustomize() -> None:
    """Run the user's site customization, or raise ImportError, as ``site`` expects."""
    sys.modules.pop("sitecustomize", None)
    # By name, as the interpreter does: the user's module is no import of this project.
    __import__("sitecustomize")


if _VARIABLE in os.environ:
    if not _main():
        _run_user_sitecustomize()
    elif "sitecustomize" not in sys.modules:
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
