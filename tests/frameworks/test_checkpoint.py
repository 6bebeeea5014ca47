"""Flash checkpoints under DeepSpeed, Lightning and Hugging Face, and in a bucket of S3."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

SCENES = Path(__file__).with_name("checkpoint_scenes.py")
HOOKS = Path(__file__).with_name("lightning_hooks.py")
SOURCES = Path(__file__).parents[2] / "src"
Play = Callable[..., dict[str, Any]]


@pytest.fixture
def play(image_map: Path) -> Play:
    """Run a scenario in the environment of the example; return its results."""
    environments = yaml.safe_load(image_map.read_text())
    python = Path(environments["gangline/examples-checkpoint:*"]["env"], "bin", "python")

    def run(*arguments: str, program: Path = SCENES) -> dict[str, Any]:
        ended = subprocess.run(
            [python, program, *arguments],
            env=os.environ | {"PYTHONPATH": str(SOURCES)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=580,
        )
        seen: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return seen

    return run


@pytest.mark.timeout(600)
@pytest.mark.parametrize("example", ["lightning_trainer", "hugging_face", "deepspeed_engine"])
def test_training_with_checkpoints_equals_training_without_them(
    example: str, play: Play, tmp_path: Path
) -> None:
    seen = play("plain", example, str(tmp_path))
    assert len(set(seen["without"])) == 50
    assert seen["with"] == seen["without"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("example", ["lightning_trainer", "hugging_face"])
def test_a_trainer_that_was_killed_in_a_save_goes_on_to_the_bit(
    example: str, play: Play, tmp_path: Path
) -> None:
    seen = play("trainer", example, str(tmp_path))
    straight = seen["straight"]
    assert len(set(straight)) == 20
    for step in (9, 13):  # the first step of an epoch, and one in the middle
        killed, again = seen[str(step)]
        assert killed == straight[:step]
        assert again == straight[step - 1 :], "it goes on from the last save that returned"


@pytest.mark.timeout(600)
def test_hooks_of_lightning_see_and_restore_what_its_own_checkpoint_has(play: Play) -> None:
    for name, (plain, flash) in play(program=HOOKS).items():
        assert len(plain[-1]) == 4, f"all hooks were called: {name}"
        assert flash == plain, name


@pytest.mark.timeout(600)
def test_an_engine_goes_on_to_the_bit_with_every_stage_of_zero(play: Play, tmp_path: Path) -> None:
    seen = play("stages", str(tmp_path))
    ended, output = seen.pop("fewer")
    straight = [*seen["0"][0][:12], *seen["0"][1]]
    assert len(set(straight)) == 20
    for stage, (killed, again) in seen.items():
        assert killed == straight[:13], f"stages of ZeRO compute the same: {stage}"
        assert again == straight[12:], f"it goes on from the last save that returned: {stage}"
    assert ended == [1]
    assert "was saved by 2 ranks and there are 1: ZeRO's partitions fit no other number" in output


@pytest.mark.timeout(600)
def test_a_bucket_takes_steps_and_gives_them_back(play: Play) -> None:
    assert play("bucket") == {
        "restored": [3, "storage", True],
        "steps": ["step-000000000002", "step-000000000003"],
        "failures": [],
        "contest": ["a committed: a", "b too late: a", "a committed: a", "b committed: b"],
        "away": True,
    }
