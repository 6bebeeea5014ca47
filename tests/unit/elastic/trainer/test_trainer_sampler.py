"""Samplers and loaders: shares of a batch, changes of the world, tuned settings."""

import json
import math
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, TensorDataset, default_collate

from gangline.elastic.agent.tuning_file import TuningFile
from gangline.elastic.protocol.messages import LoaderValues, OptimizerValues, Tuning
from gangline.elastic.trainer.loader import (
    ElasticBatchSampler,
    ElasticDataLoader,
    ElasticDistributedSampler,
)
from gangline.elastic.trainer.share import Share, ShareError
from gangline.elastic.trainer.trainer import ElasticTrainer


@pytest.mark.parametrize("drop_last", [False, True])
def test_without_interruption_it_gives_what_torch_s_sampler_gives(drop_last: bool) -> None:
    for world in (1, 2, 3, 5):
        for rank in range(world):
            torchs = DistributedSampler(range(17), world, rank, seed=3, drop_last=drop_last)  # type: ignore[arg-type]
            ours = ElasticDistributedSampler(range(17), world, rank, seed=3, drop_last=drop_last)
            torchs.set_epoch(2)
            ours.set_epoch(2)
            assert list(ours) == list(torchs)
            assert len(ours) == len(torchs)


@given(
    size=st.integers(1, 60),
    worlds=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=4),
    global_batch=st.one_of(st.none(), st.integers(6, 13)),
    last=st.integers(1, 6),
)
def test_a_change_of_world_skips_and_repeats_nothing(
    size: int, worlds: list[tuple[int, int]], global_batch: int | None, last: int
) -> None:
    order = ElasticDistributedSampler(range(size), 1, 0).order()
    state = {"epoch": 0, "completed_num": 0}
    seen: list[int] = []

    def members(world: int) -> list[ElasticDistributedSampler]:
        samplers = [
            ElasticDistributedSampler(range(size), world, rank, global_batch_size=global_batch)
            for rank in range(world)
        ]
        for one in samplers:
            one.load_state_dict(state)
        return samplers

    for world, chunks in worlds:
        samplers = members(world)
        own = [list(one) for one in samplers]
        assert [len(one) for one in own] == [len(one) for one in samplers]
        taken = 0
        for place in range(min(chunks, samplers[0]._chunks())):
            for one, records in zip(samplers, own, strict=True):
                count = 1 if global_batch is None else one.share(1).records
                seen += records[place * count : (place + 1) * count]
            taken += samplers[0].chunk
        samplers[0].advance(taken)
        state = samplers[0].state_dict()
    rest = members(last)
    seen += [record for one in rest for record in one]
    assert set(seen) == set(order)
    assert len(seen) - size < max(rest[0].chunk, *(global_batch or w for w, _ in worlds))


def test_state_after_a_number_of_batches_is_as_scripts_of_dlrover_ask_for_it() -> None:
    sampler = ElasticDistributedSampler(range(100), 4, 0)
    assert sampler.state_dict(iteration=3, micro_batch_size=5) == {"epoch": 0, "completed_num": 60}
    sampler.load_state_dict({"epoch": 1, "completed_num": 60})
    sampler.set_epoch(1)
    assert len(sampler) == 10
    sampler.set_epoch(2)
    assert len(sampler) == 25


def test_micro_batches_do_not_reach_over_a_global_batch() -> None:
    sampler = ElasticDistributedSampler(range(20), 2, 0, shuffle=False, global_batch_size=10)
    batches = ElasticBatchSampler(sampler, 2)
    assert list(batches) == [[0, 1], [2, 3], [4], [10, 11], [12, 13], [14]]
    assert len(batches) == 6
    plain = ElasticBatchSampler(ElasticDistributedSampler(range(7), 1, 0, shuffle=False), 3)
    assert list(plain) == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(plain) == 3


def test_a_loader_takes_its_batch_size_from_a_newer_file_only(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    data = TensorDataset(torch.arange(24.0))
    sampler = ElasticDistributedSampler(range(24), 1, 0, shuffle=False)

    def write(version: int, size: int) -> None:
        file.write_text(json.dumps({"dataloader": {"version": version, "batch_size": size}}))

    loader = ElasticDataLoader(data, 6, sampler, file)
    assert [len(one) for [one] in loader] == [6] * 4
    write(1, 8)
    assert [len(one) for [one] in loader] == [8] * 3
    write(1, 2)
    assert [len(one) for [one] in loader] == [8] * 3
    file.write_text("{rubbish")
    assert len(loader) == 3
    assert [len(one) for [one] in loader] == [8] * 3
    write(2, 12)
    assert [len(one) for [one] in loader] == [12] * 2


def a_training(micro: int, steps: int) -> tuple[list[float], int]:
    torch.manual_seed(0)
    inputs = torch.randn(60, 3, dtype=torch.float64)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler = ElasticDistributedSampler(inputs, 1, 0, global_batch_size=15, seed=1)
    loader = ElasticDataLoader(data, micro, sampler)
    model = torch.nn.Linear(3, 1).double()
    trainer = ElasticTrainer(model, loader)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer, scheduler = trainer.prepare(
        plain, torch.optim.lr_scheduler.ExponentialLR(plain, 0.9)
    )
    for epoch in range(steps):
        with trainer.epoch(epoch):
            for features, targets in loader:
                with trainer.step():
                    optimizer.zero_grad()
                    torch.nn.functional.mse_loss(model(features), targets).backward()
                    optimizer.step()
                    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.9**trainer.num_steps)
    return [v for p in model.parameters() for v in p.flatten().tolist()], trainer.num_steps


def test_accumulation_is_the_large_batch() -> None:
    large_batch, steps = a_training(15, 2)
    assert steps == 8
    for micro in (1, 4, 7, 14):
        pieces, same = a_training(micro, 2)
        assert same == steps
        assert pieces == pytest.approx(large_batch, rel=1e-9)


def test_a_trainer_needs_a_global_batch() -> None:
    data = TensorDataset(torch.arange(4.0))
    with pytest.raises(ShareError, match="global_batch_size"):
        ElasticTrainer(torch.nn.Linear(1, 1), ElasticDataLoader(data, 2))


def test_samplers_of_a_thousand_random_interruptions_agree_on_what_is_left() -> None:
    chance = random.Random(1)
    for _ in range(200):
        size, batch = chance.randint(1, 200), chance.randint(8, 32)
        done = chance.randint(0, size // batch) * batch
        left: list[set[int]] = []
        for world in (1, 3, 8):
            own: set[int] = set()
            for rank in range(world):
                one = ElasticDistributedSampler(
                    range(size), world, rank, drop_last=True, global_batch_size=batch
                )
                one.load_state_dict({"epoch": 3, "completed_num": done})
                own |= set(one)
            left.append(own)
        assert left[0] == left[1] == left[2]


@given(world=st.integers(1, 64), more=st.integers(0, 500), micro=st.integers(1, 70))
def test_shares_cover_the_batch_and_weights_add_up(world: int, more: int, micro: int) -> None:
    total = world + more
    shares = [Share(total, world, rank, micro) for rank in range(world)]
    places = [p for one in shares for p in range(one.start, one.start + one.records)]
    assert places == list(range(total))
    for one in shares:
        assert sum(one.micro_batches) == one.records
        assert max(one.micro_batches) <= micro
        assert max(one.micro_batches) - min(one.micro_batches) <= 1
    weights = [one.weight(size) for one in shares for size in one.micro_batches]
    assert math.fsum(weights) / world == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((2, 3, 0, 1), "leaves some of 3"),
        ((4, 2, 2, 1), "rank 2"),
        ((4, 2, 0, 0), "at least one record"),
    ],
)
def test_invalid_shares_are_refused(shares: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ShareError, match=message):
        Share(*shares)


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
