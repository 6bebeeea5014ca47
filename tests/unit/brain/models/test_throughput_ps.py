"""Throughput with parameter servers, against jobs of each known form."""

import numpy as np
import pytest

from gangline.brain.models.throughput_ps import (
    FORMS,
    ServerConfiguration,
    ServerObservation,
    fit_server_throughput,
)

TRUE = {
    "resources": [0.02, 0.3, 0.01, 0.001, 0.05],
    "asynchronous": [0.3, 0.1, 0.01, 0.005],
    "synchronous": [0.01, 0.1, 0.02, 0.002, 0.004],
}


def sizes(seed: int) -> list[ServerConfiguration]:
    random = np.random.default_rng(seed)
    return [
        ServerConfiguration(
            int(random.integers(2, 40)),
            int(random.integers(1, 12)),
            float(random.choice([64, 128, 256])),
            float(random.uniform(2, 8)),
            float(random.uniform(2, 8)),
        )
        for _ in range(14)
    ]


def true_step(form: str, at: ServerConfiguration) -> float:
    return float(np.array(FORMS[form](at)) @ np.array(TRUE[form]))


@pytest.mark.parametrize("form", list(TRUE))
def test_known_form_is_found_again(form: str) -> None:
    data = [ServerObservation(at, 100, true_step(form, at)) for at in sizes(1)]
    model = fit_server_throughput(data)
    assert model is not None
    assert model.error < 1e-3
    for at in sizes(2):
        assert model.step_time(at) == pytest.approx(true_step(form, at), rel=0.02)
        expected = at.workers * at.micro_batch / true_step(form, at)
        assert model.samples_per_second(at) == pytest.approx(expected, rel=0.02)


def test_b10_sizes_of_zero_are_not_divided_by() -> None:
    at = sizes(1)[0]
    impossible = [
        ServerConfiguration(0, 1, 64, 4, 4),
        ServerConfiguration(4, 0, 64, 4, 4),
        ServerConfiguration(4, 1, 0, 4, 4),
        ServerConfiguration(4, 1, 64, 0, 4),
        ServerConfiguration(4, 1, 64, 4, float("nan")),
    ]
    assert fit_server_throughput([ServerObservation(c, 10, 1.0) for c in impossible]) is None
    assert fit_server_throughput([ServerObservation(at, 0, 1.0)]) is None
    assert fit_server_throughput([ServerObservation(at, 10, 0.0)]) is None


def test_sizes_that_were_not_seen_are_extrapolated() -> None:
    data = [ServerObservation(at, 100, true_step("resources", at)) for at in sizes(1)]
    model = fit_server_throughput(data)
    assert model is not None
    assert not model.extrapolated(data[0].configuration)
    assert model.extrapolated(ServerConfiguration(400, 4, 64, 4, 4))
    assert model.extrapolated(ServerConfiguration(4, 40, 64, 4, 4))
