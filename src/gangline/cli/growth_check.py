"""The scheduler's trial placement, as the Brain asks for it before a job grows."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangline.kube.client.client import ApiClient


def growth_check(
    names: frozenset[str] = frozenset(),
) -> "Callable[[ApiClient, str, str, int], Awaitable[tuple[int, str]]]":
    """Return the check, for pods of some schedulers; empty: those of the deployed one.

    The scheduler is imported when a job grows for the first time.
    """

    async def check(client: "ApiClient", group: str, role: str, count: int) -> tuple[int, str]:
        from gangline.scheduler.reporting.growth import read_growth

        return await read_growth(client, group, role, count, names)

    return check
