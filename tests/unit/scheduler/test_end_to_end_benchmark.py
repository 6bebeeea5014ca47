"""What the end-to-end benchmark reads from the metrics of both API servers."""

import pytest
from benchmarks.scheduler.observations import Histograms


def exposition(name: str, verb: str, further: str, counts: tuple[int, int, int]) -> str:
    lines = [
        f'{name}_bucket{{{further}verb="{verb}",le="{bound}"}} {count}'
        for bound, count in zip(("0.1", "1.0", "+Inf"), counts, strict=True)
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("name", "verb", "further"),
    [
        ("gangline_apiserver_request_seconds", "create", ("", "")),
        ("apiserver_request_duration_seconds", "POST", ('resource="pods",', 'resource="nodes",')),
    ],
)
def test_quantiles_are_of_the_requests_since_the_start(
    name: str, verb: str, further: tuple[str, str]
) -> None:
    first, second = further
    streams = exposition(name, "WATCH", first, (0, 0, 50))
    before = Histograms(streams + exposition(name, verb, first, (100, 100, 100)))
    after = exposition(name, verb, first, (150, 160, 160))
    if first != second:
        after += exposition(name, verb, second, (0, 40, 40))
    shown = Histograms(streams + after).since(before)
    [(count, p50, p99)] = shown.values()
    if first == second:
        assert (count, p50) == (60, pytest.approx(0.06))
        assert p99 == pytest.approx(0.1 + 0.9 * (59.4 - 50) / 10)
    else:
        assert (count, p50) == (100, pytest.approx(0.1))
        assert p99 == pytest.approx(0.1 + 0.9 * (99 - 50) / 50)
