"""Settings of the data loader from the file that the agent writes."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset, default_collate

from gangline.elastic.agent.tuning_file import TuningFile
from gangline.elastic.protocol.messages import LoaderValues, OptimizerValues, Tuning
from gangline.elastic.trainer.loader import ElasticDataLoader, ElasticDistributedSampler
from gangline.elastic.trainer.trainer import ElasticTrainer

DATA = TensorDataset(torch.arange(64.0))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuningFile:
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("GANGLINE_TUNING_FILE", str(path))
    monkeypatch.setenv("GANGLINE_PARALLEL_CONFIG", str(path))
    return TuningFile(path, tunes_batch=True)


def sizes(loader: ElasticDataLoader[torch.Tensor]) -> set[int]:
    return {len(batch[0]) for batch in loader}


def test_tuning_applies_from_the_next_pass_on(file: TuningFile) -> None:
    sampler = ElasticDistributedSampler(DATA, 2, 0, global_batch_size=32)
    loader = ElasticDataLoader(DATA, 4, sampler, collate_fn=default_collate)
    batches = iter(loader)
    assert len(next(batches)[0]) == 4
    file.apply(Tuning(version=1, dataloader=LoaderValues(batch_size=8)))
    assert {len(batch[0]) for batch in batches} == {4}
    assert sizes(loader) == {8}
    assert loader.num_workers == 0, "what is not tuned stays"


def test_batch_size_stays_if_ranks_would_have_different_numbers_of_batches(
    file: TuningFile,
) -> None:
    file.apply(Tuning(version=1, dataloader=LoaderValues(batch_size=8, pin_memory=False)))
    several = ElasticDataLoader(DATA, 4, ElasticDistributedSampler(DATA, 2, 0))
    single = ElasticDataLoader(DATA, 4, ElasticDistributedSampler(DATA, 1, 0))
    assert (sizes(several), sizes(single)) == ({4}, {8})


def test_settings_of_the_optimizer_are_returned_once(file: TuningFile) -> None:
    sampler = ElasticDistributedSampler(DATA, 1, 0, global_batch_size=32)
    model = torch.nn.Linear(1, 1)
    trainer = ElasticTrainer(model, ElasticDataLoader(DATA, 4, sampler))
    assert trainer.new_optimizer_config() is None
    file.apply(Tuning(version=1, optimizer=OptimizerValues(learning_rate=0.5)))
    config = trainer.new_optimizer_config()
    assert config is not None
    assert (config.learning_rate, config.weight_decay) == (0.5, None)
    assert trainer.new_optimizer_config() is None
