"""What a successor takes over: the state of a replica, and the random state of a seat."""

import random
from pathlib import Path

import numpy as np
import torch

from gangline.elastic.trainer.replica import SeatFile, random_state, set_random_state


def draw() -> tuple[float, ...]:
    return torch.rand(1).item(), random.random(), float(np.random.rand())


def test_random_state_of_a_seat_continues_in_another_process(tmp_path: Path) -> None:
    before = SeatFile(tmp_path / "seat")
    before.write(4, random_state())
    fourth = draw()
    before.write(5, random_state())
    fifth = draw()
    after = SeatFile(tmp_path / "seat")
    for step, expected in ((5, fifth), (4, fourth)):
        state = after.read(step)
        assert state is not None
        set_random_state(state)
        assert draw() == expected


def test_random_state_that_was_not_completely_written_is_not_used(tmp_path: Path) -> None:
    seat = SeatFile(tmp_path / "seat")
    seat.write(6, random_state())
    assert seat.read(8) is None
    path = tmp_path / "seat"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    assert SeatFile(path).read(6) is None
