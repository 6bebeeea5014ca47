"""Runs inside every Python worker, just before the interpreter turns to the training script.

The agent puts this folder first on ``PYTHONPATH``; ``site`` then imports this file. It undoes every
trace of itself (environment, ``sys.path``, a site customization of the user's own is run as usual)
and does one of two things:

- a worker that starts at once: note what it will import, for the spares to come;
- a spare: import what the script will import, wait for the agent's order, take over the environment
  and the streams named there.

The interpreter goes on to run the script itself, so ``__main__``, ``sys.argv``, tracebacks and the
rest are not imitated: they are the real ones. Only the standard library is used, nothing of ours
can be imported here: the interpreter may be another one than the agent's.
"""

import os
import sys

_VARIABLE = "GANGLINE_WORKER_HOOK"


def _main() -> None:
    folder = os.path.dirname(__file__)
    mode, descriptor = os.environ.pop(_VARIABLE).split(":")
    _hide(folder)
    try:
        sys.path.insert(0, folder)
        import gangline_worker_hook as hook  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
    finally:
        sys.path.remove(folder)
        sys.path_importer_cache.pop(folder, None)
    sys.modules.pop("gangline_worker_hook", None)
    try:
        hook.run(mode, int(descriptor))
    except BaseException:
        # What is raised here is printed by ``site``, and the script runs all the same: right for a
        # worker, but a spare that could not wait for its order must not train.
        if mode == "spare":
            os._exit(1)
        raise


def _hide(folder: str) -> None:
    paths = os.environ["PYTHONPATH"].split(os.pathsep, 1)
    if len(paths) > 1:
        os.environ["PYTHONPATH"] = paths[1]
    else:
        del os.environ["PYTHONPATH"]
    while folder in sys.path:
        sys.path.remove(folder)
    sys.path_importer_cache.pop(folder, None)


def _give_way() -> None:
    """Run the site customization that this file hides; ``site`` expects an error for none."""
    sys.modules.pop("sitecustomize", None)
    # By name, as the interpreter does: the user's module is no import of this project.
    __import__("sitecustomize")


if _VARIABLE in os.environ:
    _main()
    _give_way()
