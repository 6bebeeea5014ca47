"""The order of a merged list: the order of the patch first, the server's order for the rest."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any


def order_elements(
    merged: Sequence[Any],
    patch_order: Sequence[Any],
    server_order: Sequence[Any],
    identity: Callable[[Any], Hashable],
) -> list[Any]:
    """Return ``merged`` with the patched items in the order of the patch, the others in server
    order.

    The two sequences are zipped. An item that only the server has comes first if it stood before
    the next patched item; otherwise the patched item comes first.
    """
    rank = {identity(item): place for place, item in reversed(list(enumerate(patch_order)))}
    place_before = {
        identity(item): place for place, item in reversed(list(enumerate(server_order)))
    }
    first = sorted(
        (item for item in merged if identity(item) in rank), key=lambda item: rank[identity(item)]
    )
    others = sorted(
        (item for item in merged if identity(item) not in rank),
        key=lambda item: place_before.get(identity(item), len(place_before)),
    )
    result: list[Any] = []
    waiting = iter(others)
    other = next(waiting, None)
    for item in first:
        here = place_before.get(identity(item))
        while other is not None and here is not None:
            if place_before.get(identity(other), here) >= here:
                break
            result.append(other)
            other = next(waiting, None)
        result.append(item)
    if other is not None:
        result += [other, *waiting]
    return result
