"""Jobs from Python: submit, list, wait for, diagnose and delete them, and read their logs.

    from gangline.sdk import Client

    with Client() as client:
        client.run(train, workers=3, image="pytorch/pytorch:2.7.1", name="digits")
        for line in client.logs("digits", follow=True):
            print(line.replica, line.text)
        job = client.wait("digits")

``AsyncClient`` has the same methods as coroutines. Modules, from high to low: ``session`` (both
clients), ``cluster_checks`` and ``diagnosis`` (why a job failed or does not run), ``client``
(requests to the cluster), ``logs`` (merges the output of the replicas), ``jobs`` (state of a job).
The command line is a thin layer over them.
"""

from typing import TYPE_CHECKING, Any

from gangline.moved_modules import install_moved_sdk_modules

if TYPE_CHECKING:
    from gangline.sdk.session import AsyncClient as AsyncClient
    from gangline.sdk.session import Client as Client

__all__ = ["AsyncClient", "Client"]

install_moved_sdk_modules()


def __getattr__(name: str) -> Any:
    # Late: the model of a job is usable without importing the API client.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gangline.sdk import session  # noqa: PLC0415

    return getattr(session, name)
