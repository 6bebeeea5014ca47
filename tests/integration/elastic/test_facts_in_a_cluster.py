"""Facts and tuning of a real ElasticJob on an embedded cluster."""

import json
from pathlib import Path

import msgspec
import pytest

from gangline.api.jobs.training_facts import TrainingFacts
from gangline.api.resources import CONFIG_MAPS, ELASTIC_JOBS
from gangline.kube.client.client import ApiClient
from integration.cluster.embedded import EmbeddedCluster, until
from integration.elastic.elastic_jobs import elastic_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FACTS, TUNING = "elasticjob-train-facts", "elasticjob-train-tuning"
SCRIPT = """
import json, os, pathlib, sys, time
progress, out = pathlib.Path(os.environ["GANGLINE_PROGRESS_FILE"]), pathlib.Path(sys.argv[1])
config = pathlib.Path(os.environ["GANGLINE_PARALLEL_CONFIG"])
assert os.environ["DLROVER_PARAL_CONFIG_PATH"] == os.environ["GANGLINE_TUNING_FILE"] == str(config)
rank, step = os.environ["RANK"], 0
while not (out / "end").exists():
    step += 1
    progress.write_text(f"step {step}\\nfirst_step 1\\nbatch_size 8\\naccumulation 2\\n"
                        f"global_batch 32\\nmodel_layers 12\\n")
    if config.exists():
        (out / f"tuned-{rank}.new").write_text(config.read_text())
        (out / f"tuned-{rank}.new").rename(out / f"tuned-{rank}")
    time.sleep(0.05)
"""


LAUNCHER = "--nnodes=2 --nproc-per-node=1 --no-standby --auto-tunning {folder}/train.py {folder}"


async def read_facts(client: ApiClient) -> TrainingFacts | None:
    found = await client.get(CONFIG_MAPS, FACTS, "default")
    text = found.data.get("facts", "")
    return msgspec.json.decode(text, type=TrainingFacts) if text else None


async def test_facts_appear_and_tuning_reaches_the_workers(
    shared_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "train.py").write_text(SCRIPT)
    async with shared_cluster.client() as client:
        await client.create(
            ELASTIC_JOBS, elastic_job(folder, LAUNCHER.format(folder=folder), 2), "default"
        )

        async def segments() -> TrainingFacts | None:
            try:
                found = await read_facts(client)
            except msgspec.MsgspecError:
                raise
            except Exception:
                return None
            return found if found is not None and found.segments else None

        facts = await until(segments, 120, shared_cluster.said)
        assert facts is not None
        uid = (await client.get(ELASTIC_JOBS, "train", "default")).metadata.uid
        assert (facts.v, facts.namespace, facts.name, facts.uid) == (1, "default", "train", uid)
        first = facts.segments[0]
        assert (first.quality, first.nodes, first.procs) == ("warm_up", 2, 2)
        assert (first.micro_batch, first.accumulation, first.global_batch) == (8, 2, 32)
        assert first.step_first == 1
        assert first.step_seconds.mean > 0.04
        assert first.compute_seconds is None, "the script does not report it"
        assert facts.model is not None
        assert facts.model.layers == 12
        assert facts.tunes_batch
        assert {pod.name for pod in facts.pods} == {
            "train-edljob-worker-0", "train-edljob-worker-1",
        }  # fmt: skip
        for pod in facts.pods:
            assert pod.peak_memory_bytes is not None
            assert 1 << 20 < pod.peak_memory_bytes < 1 << 32

        tuning = {
            "v": 1, "version": 5, "dataloader": {"batchSize": 16, "numWorkers": 3},
            "checkpoint": {"failures": 2, "seconds": 7200},
        }  # fmt: skip
        await client.patch(CONFIG_MAPS, TUNING, {"data": {"tuning": json.dumps(tuning)}}, "default")
        files = [folder / f"tuned-{rank}" for rank in range(2)]

        async def tuned() -> bool:
            return all(file.exists() for file in files)

        await until(tuned, 60, shared_cluster.said)
        for file in files:
            written = json.loads(file.read_text())
            assert written["dataloader"]["batch_size"] == 16
            assert written["dataloader"]["num_workers"] == 3
            assert written["checkpoint"]["seconds"] == 7200
        (folder / "end").touch()

        async def finished() -> bool:
            found = await client.get(ELASTIC_JOBS, "train", "default")
            return found.status.phase == "Succeeded"

        await until(finished, 60, shared_cluster.said)

        async def rest_is_published() -> bool:
            last = await read_facts(client)
            assert last is not None
            return (last.segments[-1].step_last or 0) > (first.step_last or 0)

        # The master writes it before it ends, which may be after its job has.
        await until(rest_is_published, 30, shared_cluster.said)
