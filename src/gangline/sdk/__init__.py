"""(keep the text of the file; see stage 1)"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gangline.sdk.session import AsyncClient as AsyncClient
    from gangline.sdk.session import Client as Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> Any:
    # Late: the model of a job is usable without importing the API client.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gangline.sdk import session  # noqa: PLC0415

    return getattr(session, name)
