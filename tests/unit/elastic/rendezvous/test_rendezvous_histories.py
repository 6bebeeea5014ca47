"""Thousands of random histories: the rules hold for all orders of events."""

import pytest

from unit.elastic.rendezvous.rendezvous_stage import Stage

SHAPES = [
    pytest.param(2, 2, 1, True, id="two of two"),
    pytest.param(1, 2, 1, True, id="one to two"),
    pytest.param(2, 4, 1, False, id="two to four without ranks"),
    pytest.param(2, 6, 2, True, id="two to six by pairs"),
    pytest.param(3, 5, 1, True, id="three to five"),
]
HISTORIES = 400


@pytest.mark.parametrize(("lowest", "highest", "unit", "ranks"), SHAPES)
def test_worlds_agree_and_no_node_waits_endlessly(
    lowest: int, highest: int, unit: int, ranks: bool
) -> None:
    worlds = 0
    for seed in range(HISTORIES):
        stage = Stage(seed, lowest=lowest, highest=highest, unit=unit, ranks=ranks)
        try:
            for _ in range(stage.random.randrange(10, 120)):
                stage.step()
            stage.quiesce()
            stage.check_rest()
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}") from error
        worlds += len(stage.worlds)
    assert worlds > HISTORIES, "most histories are to form worlds, some several"
