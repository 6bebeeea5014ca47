"""Own writes complete the cache until the watch shows them."""

from msgspec.structs import replace

from gangline.operator.engine.mutation_cache import (
    WATCH_TIMEOUT_S,
    UnobservedWrites,
    WrittenStatuses,
)
from gangline.operator.model.replicas import ObservedPod
from unit.operator.builders import UID, a_pod, manifest, stored


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def recent() -> tuple[UnobservedWrites[ObservedPod], Clock]:
    clock = Clock()
    return UnobservedWrites(clock), clock


POD = a_pod("worker-0", uid="a")


def test_a_pod_that_was_made_is_there_before_the_watch_shows_it():
    objects, _ = recent()
    objects.record_created(POD, None)
    assert objects.merge_into(UID, []) == [POD]
    assert objects.has_unobserved(UID)
    objects.observe(None, POD)
    assert objects.merge_into(UID, []) == []
    assert not objects.has_unobserved(UID)


def test_a_pod_that_the_watch_showed_first_is_not_noted():
    objects, _ = recent()
    objects.record_created(POD, POD)
    assert not objects.has_unobserved(UID)


def test_a_pod_is_never_there_twice():
    objects, _ = recent()
    objects.record_created(POD, None)
    assert objects.merge_into(UID, [POD]) == [POD]


def test_a_pod_that_the_watch_never_shows_is_forgotten_in_the_end():
    objects, clock = recent()
    objects.record_created(POD, None)
    clock.now = WATCH_TIMEOUT_S + 1
    assert objects.merge_into(UID, []) == []
    assert not objects.has_unobserved(UID)


def test_a_pod_that_was_deleted_is_leaving_before_the_watch_shows_it():
    objects, clock = recent()
    objects.record_deleted("a")
    assert objects.merge_into(UID, [POD])[0].is_terminating
    clock.now = WATCH_TIMEOUT_S + 1
    assert not objects.merge_into(UID, [POD])[0].is_terminating


def test_deletions_that_the_watch_showed_first_do_not_pile_up():
    objects, clock = recent()
    for number in range(1000):
        clock.now = number
        objects.record_deleted(f"uid-{number}")
    assert len(objects._deleted) <= WATCH_TIMEOUT_S + 2


def test_a_job_is_forgotten_with_all_that_was_made_for_it():
    objects, _ = recent()
    objects.record_created(POD, None)
    objects.forget(UID)
    assert not objects.has_unobserved(UID)


def version(number: int):
    job = stored(manifest())
    return replace(job, metadata=replace(job.metadata, resource_version=str(number)))


def test_a_status_that_was_written_is_newer_than_what_the_cache_has():
    status = WrittenStatuses()
    status.record_write(version(1), version(2))
    status.record_write(version(2), version(3))
    assert status.latest(version(1)) == version(3)
    assert status.latest(version(2)) == version(3)
    assert status.latest(version(4)) == version(4)
    assert status.latest(version(1)) == version(1), "once caught up, nothing is remembered"
