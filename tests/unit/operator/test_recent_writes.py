"""Own writes complete the cache until the watch shows them."""

from msgspec.structs import replace

from gangline.operator.recent import PATIENCE_S, RecentObjects, RecentStatus
from gangline.operator.replicas import Pod
from unit.operator.builders import UID, a_pod, manifest, stored


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def recent() -> tuple[RecentObjects[Pod], Clock]:
    clock = Clock()
    return RecentObjects(clock), clock


POD = a_pod("worker-0", uid="a")


def test_a_pod_that_was_made_is_there_before_the_watch_shows_it():
    objects, _ = recent()
    objects.made(POD, None)
    assert objects.over(UID, []) == [POD]
    assert objects.pending(UID)
    objects.shown(None, POD)
    assert objects.over(UID, []) == []
    assert not objects.pending(UID)


def test_a_pod_that_the_watch_showed_first_is_not_noted():
    objects, _ = recent()
    objects.made(POD, POD)
    assert not objects.pending(UID)


def test_a_pod_is_never_there_twice():
    objects, _ = recent()
    objects.made(POD, None)
    assert objects.over(UID, [POD]) == [POD]


def test_a_pod_that_the_watch_never_shows_is_forgotten_in_the_end():
    objects, clock = recent()
    objects.made(POD, None)
    clock.now = PATIENCE_S + 1
    assert objects.over(UID, []) == []
    assert not objects.pending(UID)


def test_a_pod_that_was_deleted_is_leaving_before_the_watch_shows_it():
    objects, clock = recent()
    objects.deleted("a")
    assert objects.over(UID, [POD])[0].terminating
    clock.now = PATIENCE_S + 1
    assert not objects.over(UID, [POD])[0].terminating


def test_deletions_that_the_watch_showed_first_do_not_pile_up():
    objects, clock = recent()
    for number in range(1000):
        clock.now = number
        objects.deleted(f"uid-{number}")
    assert len(objects._deleted) <= PATIENCE_S + 2


def test_a_job_is_forgotten_with_all_that_was_made_for_it():
    objects, _ = recent()
    objects.made(POD, None)
    objects.forget(UID)
    assert not objects.pending(UID)


def version(number: int):
    job = stored(manifest())
    return replace(job, metadata=replace(job.metadata, resource_version=str(number)))


def test_a_status_that_was_written_is_newer_than_what_the_cache_has():
    status = RecentStatus()
    status.written(version(1), version(2))
    status.written(version(2), version(3))
    assert status.newest(version(1)) == version(3)
    assert status.newest(version(2)) == version(3)
    assert status.newest(version(4)) == version(4)
    assert status.newest(version(1)) == version(1), "once caught up, nothing is remembered"
