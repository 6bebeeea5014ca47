"""Runs scenarios with flash checkpoints in the environment of other frameworks.

    python checkpoint_scenes.py plain EXAMPLE FOLDER
    python checkpoint_scenes.py trainer EXAMPLE FOLDER
    python checkpoint_scenes.py stages FOLDER
    python checkpoint_scenes.py bucket

Frameworks are imported once; each training process is a fork. Prints one line of JSON.
"""

import json
import os
import re
import runpy
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from gangline.elastic.checkpoint import Checkpointer, StepTakenError, StorageError
from gangline.elastic.checkpoint.format.manifest import (
    MANIFEST,
    Manifest,
    decode_manifest,
    encode_manifest,
    step_folder,
)
from gangline.elastic.checkpoint.restore.source import StorageSource
from gangline.elastic.checkpoint.storage.target import RemoteTarget, open_target

EXAMPLES = Path(__file__).parents[2] / "examples" / "checkpoint"
FRAMEWORKS = {
    "deepspeed_engine": "deepspeed",
    "lightning_trainer": "lightning.pytorch",
    "hugging_face": "transformers.trainer",
}
RANKS = 2
STEPS = 20
LONG = 50
"""Steps of trainings with and without checkpoints."""


def life(
    example: str,
    folder: str,
    failpoint: str = "",
    *,
    ranks: int = RANKS,
    steps: int = STEPS,
    arguments: Sequence[str] = (),
) -> list[str]:
    """Run the ranks; return the losses of rank 0. With a failpoint all are killed there."""
    ended = lives(example, folder, failpoint, ranks, [str(steps), *arguments])
    output = Path(said_by(0, folder)).read_text()
    assert ended == [-9 if failpoint else 0] * ranks, f"{ended}\n{output}"
    return re.findall(r"loss (\S+)", output)


def lives(
    example: str, folder: str, failpoint: str, count: int, arguments: Sequence[str]
) -> list[int]:
    """Run ranks until all have ended; return their exit codes."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            os.environ |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(count),
                "LOCAL_WORLD_SIZE": str(count),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port),
                "TORCHELASTIC_RUN_ID": "scene",
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "GANGLINE_FAILPOINT": failpoint,
            }
            train(example, folder, rank, arguments)
        ranks.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks]


def said_by(rank: int, folder: str) -> str:
    return f"{folder}.rank-{rank}"


def train(example: str, folder: str, rank: int, arguments: Sequence[str]) -> None:
    """Run as a training process."""
    code = 1
    descriptor = os.open(said_by(rank, folder), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        sys.argv = [example, folder, *arguments]
        runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def plain(example: str, folder: str) -> dict[str, list[str]]:
    """Trainings with checkpoints, and the same ones in which Gangline does nothing."""
    load(example)
    arguments = ["2"] if example == "deepspeed_engine" else []
    seen = {"with": life(example, f"{folder}/with", steps=LONG, arguments=arguments)}
    remove_checkpoints()
    return seen | {"without": life(example, f"{folder}/no", steps=LONG, arguments=arguments)}


def remove_checkpoints() -> None:
    """Replace what the examples import from Gangline by objects that do nothing."""

    class Callback:
        """Stands for a callback or an engine; the frameworks ask it for anything."""

        state_key = "nothing"

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

        def state_dict(self) -> dict[str, Any]:
            return {}

    for module, name in (
        ("huggingface", "flash_callback"),
        ("lightning", "flash_callback"),
        ("deepspeed", "FlashEngine"),
    ):
        stands_in = ModuleType(f"gangline.elastic.checkpoint.{module}")
        setattr(stands_in, name, lambda *_, **__: Callback())
        sys.modules[stands_in.__name__] = stands_in


def load(example: str) -> None:
    """Import what the ranks need."""
    framework = import_module(FRAMEWORKS[example])
    if framework.__name__ == "deepspeed":
        # Compiling its shared-memory reduction takes a minute; gloo's is sufficient.
        framework.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def stages(folder: str) -> dict[str, Any]:
    """Trainings with each stage of ZeRO, killed in a save and restarted; also with fewer ranks."""
    load(example := "deepspeed_engine")
    seen: dict[str, Any] = {}
    for stage in "0123":
        place = f"{folder}/stage-{stage}"
        first = life(example, place, "save-copied:13", arguments=[stage])
        seen[stage] = [first, life(example, place, arguments=[stage])]
    fewer = lives(example, place, "", 1, [str(STEPS), stage])
    return seen | {"fewer": [fewer, Path(said_by(0, place)).read_text().splitlines()[-1]]}


def trainer(example: str, folder: str) -> dict[str, Any]:
    """An undisturbed training, and ones that are killed in a save and restarted."""
    load(example)
    seen: dict[str, Any] = {"straight": life(example, f"{folder}/straight")}
    for step in (9, 13):
        place = f"{folder}/killed-{step}"
        first = life(example, place, f"save-copied:{step}")
        seen[str(step)] = [first, life(example, place)]
    return seen


def state(value: float) -> dict[str, Any]:
    return {"w": torch.full((20_000,), value), "step": int(value)}


def bucket() -> dict[str, Any]:
    """Save to a bucket, retain two steps, restore from it after the loss of memory."""
    server = import_module("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    options = {"endpoint_url": f"http://{host}:{port}", "key": "k", "secret": "s"}
    url = "s3://bucket/run"
    try:
        target = open_target(url, options)
        assert isinstance(target, RemoteTarget)
        target.files.mkdir("bucket")
        with Checkpointer(url, linger_s=60, keep=2, options=options) as checkpointer:
            for step in range(1, 4):
                checkpointer.save(step, state(step), "storage")
                assert checkpointer.wait(60), checkpointer.counts.failures
            checkpointer.buffers.close()
            for segment in checkpointer.job_folder.glob("*.seg"):
                segment.unlink()
            into = state(0)
            loaded = checkpointer.load(into)
            assert loaded is not None
        StorageSource(target, 2).verify()
        return {
            "restored": [loaded.step, loaded.source, torch.equal(into["w"], state(3)["w"])],
            "steps": two_steps(target),
            "failures": checkpointer.counts.failures,
            "contest": contest(url, options),
            "away": away(server, url, options),
        }
    finally:
        server.stop()


def two_steps(target: RemoteTarget) -> list[str]:
    """The retained steps, once older ones are deleted, which is soon after a commit."""
    deadline = time.monotonic() + 60
    while True:
        found = [name for name in target.list_names("") if name.startswith("step-")]
        if len(found) <= 2 or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def contest(url: str, options: dict[str, str]) -> list[str]:
    """Savers that commit the same step: the result of each attempt, and the owner of the step."""
    target, found = open_target(url, options), []
    for plan, begins in (("a", True), ("b", False), ("a", False), ("b", True)):
        if begins:
            target.begin(9, plan)
        try:
            target.commit(9, plan, encode_manifest(Manifest(9, plan, 0, [], 0)))
            said = "committed"
        except StepTakenError:
            said = "too late"
        owner = decode_manifest(target.read(f"{step_folder(9)}/{MANIFEST}")).plan
        found.append(f"{plan} {said}: {owner}")
    target.remove(step_folder(9))
    return found


def away(server: Any, url: str, options: dict[str, str]) -> bool:
    """Whether an unreachable store raises a documented error."""
    server.stop()
    try:
        open_target(url, options).list_names("")
    except (OSError, StorageError):
        return True
    return False


def main() -> None:
    torch.set_num_threads(1)
    os.environ |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_MAX_ATTEMPTS": "1"}
    os.environ["DS_ACCELERATOR"] = "cpu"
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gangline-test-") as memory:
        os.environ["GANGLINE_CHECKPOINT_MEMORY"] = memory
        warnings.simplefilter("ignore")
        scenes = {"plain": plain, "trainer": trainer, "stages": stages, "bucket": bucket}
        scene = scenes[sys.argv[1]]
        print(json.dumps(scene(*sys.argv[2:])))


if __name__ == "__main__":
    main()
