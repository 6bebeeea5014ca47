"""Events of an elastic job: its own, those of its pods, and those of its master."""

import msgspec

from gangline.api.core.core import Event
from gangline.sdk.events import read_events


def test_the_master_belongs_to_its_job_and_to_no_other() -> None:
    mine = ["elasticjob-train-dlrover-master", "elasticjob-train-dlrover-master-2"]
    mine += ["train", "train-edljob-worker-3"]
    others = ["elasticjob-train-2-dlrover-master-0", "train-2", "train-2-edljob-worker-0"]
    events = [
        msgspec.convert({"involvedObject": {"kind": "Pod", "name": name}}, type=Event)
        for name in (*mine, *others)
    ]
    assert [each.subject for each in read_events(events, "train")] == sorted(
        f"pod/{name}" for name in mine
    )
