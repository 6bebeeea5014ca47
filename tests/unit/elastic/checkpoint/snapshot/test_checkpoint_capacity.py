"""Memory that is too small for all ranks of a node is detected at start, with numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gangline.elastic.checkpoint.errors import MemoryShortError
from gangline.elastic.checkpoint.format.plan import SavePlan
from gangline.elastic.checkpoint.snapshot.ring import SaveRequest
from gangline.elastic.checkpoint.snapshot.segment import (
    MemoryRequest,
    check_capacity,
    memory_request,
    memory_warning,
)

MB = 1_000_000


def want(
    node: str, size: int, had: int = 0, free: int = 1000, available: int = 1000
) -> MemoryRequest:
    place = f"{node}/boot/dev/shm"
    return MemoryRequest(place, "/dev/shm/home", size * MB, had * MB, free * MB, available * MB)


@pytest.mark.parametrize(
    "wants",
    [
        pytest.param([want("a", 1000)], id="just enough"),
        pytest.param([want("a", 500), want("a", 500)], id="enough for two ranks"),
        pytest.param([want("a", 900), want("b", 900)], id="each node has its own"),
        pytest.param([want("a", 900, 900, 0), want("a", 900, 900, 0)], id="all is had already"),
        pytest.param([want("a", 100, 900, 0)], id="what is had is larger than what is needed"),
    ],
)
def test_buffers_fit(wants: list[MemoryRequest]) -> None:
    check_capacity(wants)


@pytest.mark.parametrize(
    ("wants", "message"),
    [
        pytest.param(
            [want("a", 1001)],
            "need 1001 MB more in /dev/shm/home of a, where 1000 MB are free",
            id="one rank",
        ),
        pytest.param(
            [want("b", 1), want("a", 600), want("a", 600)],
            r"need 1200 MB more in /dev/shm/home of a \(1200 MB in all for 2 ranks\), where 1000",
            id="together they want more than each alone",
        ),
        pytest.param(
            [want("a", 900, 400, 700), want("a", 900, 600, 800)],
            r"need 800 MB more .* \(1800 MB in all for 2 ranks\), where 700 MB are free",
            id="what is had counts",
        ),
        pytest.param(
            [want("a", 100, 900, 50), want("a", 100, 0, 50)],
            "need 100 MB more",
            id="what one rank has too much is not the other's",
        ),
    ],
)
def test_shortage_message_has_numbers_and_remedies(
    wants: list[MemoryRequest], message: str
) -> None:
    with pytest.raises(MemoryShortError, match=message) as caught:
        check_capacity(wants)
    assert "emptyDir with medium: Memory" in str(caught.value)


def test_memory_warning_is_given_only_to_the_node_concerned() -> None:
    wants = [want("a", 400, 100, 1000, 500), want("a", 400, 0, 1000, 600), want("b", 400)]
    assert wants[2].node.startswith("b")
    assert memory_warning(wants, wants[2].node) == ""
    message = memory_warning(wants, wants[0].node)
    assert message.startswith("checkpoints need 700 MB more memory, and only 500 MB are available")
    assert "fewer buffers" in message


def test_allocated_memory_is_not_requested_again(rig: Any) -> None:
    state = {"w": torch.zeros(1000)}
    plan = SavePlan(rig.ranks, "here")
    agreement = plan.agree(state)
    size, had = rig.buffers.required_bytes(agreement)
    assert (size > 3 * 4000, had) == (True, 0)
    assert memory_request("here", rig.job_folder, size, had).free_bytes > 0
    rig.buffers.prepare(agreement)
    rig.buffers.wait_for_memory()
    assert rig.buffers.required_bytes(agreement) == (size, size)
    rig.buffers.save(SaveRequest(plan.fit(state), 1, for_storage=False))
    assert plan.agreement is agreement, "one agreement for all saves"
    assert rig.buffers.required_bytes(agreement) == (size, size)
    assert {path.suffix for path in Path(rig.job_folder).iterdir()} == {".seg"}
