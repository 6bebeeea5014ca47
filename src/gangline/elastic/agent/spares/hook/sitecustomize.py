"""Runs inside every Python worker, before the interpreter runs the training script.

The agent puts this folder first on ``PYTHONPATH``; ``site`` then imports this file. The file
removes every trace of itself: environment variables and entries of ``sys.path``. A site
customization of the user is run as usual. Then it does one of two things:

- in a worker that starts immediately, report what it imports, for later spares;
- in a spare, import what the script will import, wait for the agent's order, then take over the
  environment and the streams that the order names.

The interpreter itself runs the script, so ``__main__``, ``sys.argv`` and tracebacks are the real
ones. Only the standard library is used: the interpreter may not be the agent's, so nothing of
Gangline can be imported here.
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
        # ``site`` prints an error raised here and runs the script anyway. That is right for a
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


def _run_user_sitecustomize() -> None:
    """Run the user's site customization, or raise ImportError, as ``site`` expects."""
    sys.modules.pop("sitecustomize", None)
    # By name, as the interpreter does: the user's module is no import of this project.
    __import__("sitecustomize")


if _VARIABLE in os.environ:
    _main()
    _run_user_sitecustomize()
