"""Jobs from Python: submit them, look at them, wait for them, read their logs, delete them.

    from gangline.sdk import Client

    with Client() as client:
        client.run(train, workers=3, image="pytorch/pytorch:2.7.1", name="digits")
        for line in client.logs("digits", follow=True):
            print(line.replica, line.text)
        job = client.wait("digits")

``AsyncClient`` has the same methods as coroutines. ``jobs`` says what a job is and how it is doing,
``client`` talks to the cluster, ``logs`` merges what the replicas write, ``diagnosis`` finds out
why a job failed. The command line is a thin layer over these.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gangline.sdk.session import AsyncClient as AsyncClient
    from gangline.sdk.session import Client as Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> Any:
    # Late: whoever wants to know what a job is need not import what talks to clusters.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gangline.sdk import session  # noqa: PLC0415

    return getattr(session, name)
