"""Which queue an object uses, and who is asked about."""

from typing import Any

import pytest

from gangline.api.cluster.admission import UserInfo
from gangline.operator.main import all_frameworks
from gangline.operator.settings import OperatorSettings
from gangline.operator.webhook.review import QueueAccess, QueueReader, ReviewRequest
from unit.operator.builders import manifest

FRAMEWORKS = all_frameworks(OperatorSettings())
QUEUE = "scheduling.volcano.sh/queue-name"


def pod(**annotations: str) -> dict[str, Any]:
    metadata = {"annotations": {key.replace("__", "/"): v for key, v in annotations.items()}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}}


def group(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "spec": spec}


@pytest.mark.parametrize(
    ("written", "queue"),
    [
        pytest.param(manifest(schedulingPolicy={"queue": "q"}), "q", id="job"),
        pytest.param(manifest(), "default", id="job without a queue"),
        pytest.param(group(queue="q"), "q", id="group"),
        pytest.param(group(), "default", id="group without a queue"),
        pytest.param(group(queue=3), "default", id="group with an invalid queue"),
        pytest.param(pod(), None, id="pod"),
        pytest.param(pod(**{QUEUE: "q"}), "q", id="pod with a queue"),
        pytest.param(
            pod(**{"scheduling.volcano.sh/group-min-member": "2"}), "default", id="pod of a gang"
        ),
        pytest.param(
            pod(**{QUEUE: "q", "scheduling.k8s.io/group-name": "g"}), None, id="pod of a PodGroup"
        ),
        pytest.param(
            {**pod(**{QUEUE: "q"}), "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup"},
            "q",
            id="group of Kubernetes",
        ),
        pytest.param({"apiVersion": "v1", "kind": "Secret"}, None, id="another kind"),
        pytest.param(None, None, id="nothing"),
    ],
)
def test_the_queue_of_an_object(written: dict[str, Any] | None, queue: str | None) -> None:
    assert QueueReader(FRAMEWORKS).queue_of(written) == queue


class Reviews:
    """A client whose API server allows these users."""

    def __init__(self, *allowed: str) -> None:
        self.allowed, self.asked = allowed, list[tuple[str, str]]()

    async def request_json(self, _: str, __: str, body: dict[str, Any]) -> dict[str, Any]:
        user, attributes = body["spec"]["user"], body["spec"]["resourceAttributes"]
        assert (attributes["verb"], attributes["resource"]) == ("use", "queues")
        self.asked.append((user, attributes["name"]))
        return {"status": {"allowed": user in self.allowed}}


def request(new: dict[str, Any], old: dict[str, Any] | None = None) -> ReviewRequest:
    return ReviewRequest(
        uid="u",
        operation="UPDATE" if old else "CREATE",
        namespace="ns",
        user_info=UserInfo(username="ann"),
        object=new,
        old_object=old,
    )


@pytest.mark.parametrize(
    ("asked", "allowed", "expected", "subjects"),
    [
        pytest.param(request(group(queue="q")), ("ann",), True, ["ann"], id="right"),
        pytest.param(request(group(queue="q")), (), False, ["ann"], id="no right"),
        pytest.param(request(group(queue="q"), group(queue="q")), (), True, [], id="same queue"),
        pytest.param(request(group(queue="q"), group()), (), False, ["ann"], id="new queue"),
        pytest.param(
            request(pod(**{QUEUE: "q"}), pod()),
            (),
            False,
            ["ann", "system:serviceaccount:ns:default"],
            id="pod gains a queue",
        ),
        pytest.param(
            request(pod(**{QUEUE: "q", "a": "b"}), pod(**{QUEUE: "q"})),
            (),
            True,
            [],
            id="another annotation of a pod",
        ),
        pytest.param(
            request(pod(**{QUEUE: "q"})),
            ("system:serviceaccount:ns:default",),
            True,
            ["ann", "system:serviceaccount:ns:default"],
            id="right of the pod's account",
        ),
    ],
)
async def test_who_is_asked_about(
    asked: ReviewRequest, allowed: tuple[str, ...], expected: bool, subjects: list[str]
) -> None:
    reviews = Reviews(*allowed)
    answer = await QueueAccess(reviews, FRAMEWORKS).review(asked)  # type: ignore[arg-type]
    assert answer.allowed == expected
    assert reviews.asked == [(subject, "q") for subject in subjects]
    assert expected or (answer.status is not None and answer.status.code == 403)
