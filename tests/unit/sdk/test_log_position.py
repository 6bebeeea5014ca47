"""A resumed log stream neither loses nor repeats a line."""

from hypothesis import given
from hypothesis import strategies as st

from gangline.sdk.logs import LogLine, LogPosition

TIMES = ["2026-01-01T00:00:00.1Z", "2026-01-01T00:00:00.2Z", "2026-01-01T00:00:01.3Z"]
lines = st.lists(
    st.builds(
        LogLine, st.sampled_from(TIMES), st.just("worker-0"), st.sampled_from(["a", "b", "c"])
    ),
    max_size=12,
).map(lambda found: sorted(found, key=lambda line: line.time))


@given(lines, st.lists(st.integers(0, 12), max_size=4))
def test_lines_that_are_sent_again_are_returned_once(
    written: list[LogLine], breaks: list[int]
) -> None:
    """Each break resumes at the second of the last line, as ``sinceTime`` does."""
    position = LogPosition()
    passed: list[LogLine] = []
    for length in [*sorted(breaks), len(written)]:
        position.resume()
        second = position.last[:19]
        again = [line for line in written[:length] if line.time[:19] >= second]
        passed += [line for line in again if position.is_new(line)]
    assert passed == written


def test_equal_lines_of_one_time_are_all_passed_on() -> None:
    position = LogPosition()
    line = LogLine(TIMES[0], "worker-0", "again")
    assert [position.is_new(line) for _ in range(3)] == [True, True, True]
    position.resume()
    assert [position.is_new(line) for _ in range(4)] == [False, False, False, True]
