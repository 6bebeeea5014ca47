"""The webhook's response, as a function of the review; the queues that its user may use."""

import base64
import copy
from typing import Any

import msgspec
import pytest

from gangline.api.cluster.admission import AdmissionResponse, UserInfo
from gangline.api.jobs.kind import JobKind
from gangline.api.meta.objects import Status, StatusCause
from gangline.api.validation.validate import MAX_JOB_REPLICAS
from gangline.kube.errors import NotFound
from gangline.operator.main import all_frameworks
from gangline.operator.settings import OperatorSettings
from gangline.operator.webhook import review
from gangline.operator.webhook.defaults import JobDefaulter
from gangline.operator.webhook.review import (
    InvalidReview,
    QueueAccess,
    QueueReader,
    ReviewedResource,
    ReviewRequest,
)
from unit.operator.builders import manifest
from unit.operator.kinds import KINDS, KindUnderTest

Json = dict[str, Any]

DEFAULTING = JobDefaulter(all_frameworks(OperatorSettings()))


def job(**changes: Any) -> Json:
    return copy.deepcopy(manifest(1, 2)) | changes


def with_mistakes() -> Json:
    """A job with one error of each kind: shape, enum, role, container, relation."""
    written = job()
    spec = written["spec"]
    spec["runPolicy"] = {"backoffLimit": -1, "cleanPodPolicy": "Sometimes"}
    spec["pytorchReplicaSpecs"]["Master"]["replicas"] = 2
    spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["name"] = "main"
    spec["nprocPerNode"] = "many"
    return written


def ask(
    new: Json | None, old: Json | None = None, operation: str = "", **more: Any
) -> ReviewRequest:
    return ReviewRequest("uid-1", operation or ("UPDATE" if old else "CREATE"), object=new,
                    old_object=old, **more)  # fmt: skip


def refusal(new: Json | None, old: Json | None = None) -> Status:
    """The status of a review that is refused."""
    answer = review.validate(ask(new, old))
    assert not answer.allowed
    assert answer.status is not None
    return answer.status


def causes(status: Status) -> dict[str, StatusCause]:
    """Its causes by field."""
    assert status.details is not None
    return {cause.field: cause for cause in status.details.causes}


def on_the_wire(request: Any, **changes: Any) -> bytes:
    envelope = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return msgspec.json.encode(envelope | changes)


def test_valid_job_is_allowed_without_warnings() -> None:
    answer = review.validate(ask(job()))
    assert (answer.allowed, answer.uid, answer.status, answer.warnings) == (
        True,
        "uid-1",
        None,
        None,
    )


def test_error_in_a_pod_template_has_reason_and_message_of_the_api_server() -> None:
    new = job()
    del new["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["image"]
    (cause,) = causes(refusal(new)).values()
    assert (cause.reason, cause.message) == ("FieldValueRequired", "Required value")


def test_all_errors_are_reported_together_with_their_fields() -> None:
    status = refusal(with_mistakes())
    assert (status.code, status.reason) == (422, "Invalid")
    assert status.message.startswith('PyTorchJob.kubeflow.org "train" is invalid: [')
    reported = causes(status)
    assert reported.keys() == {
        "spec.nprocPerNode",
        "spec.pytorchReplicaSpecs.Master.replicas",
        "spec.pytorchReplicaSpecs.Worker.template.spec.containers",
        "spec.runPolicy.backoffLimit",
        "spec.runPolicy.cleanPodPolicy",
    }
    for field, cause in reported.items():
        assert f"{field}: {cause.message}" in status.message
    assert reported["spec.runPolicy.cleanPodPolicy"].reason == "FieldValueNotSupported"
    assert status.details is not None
    assert (status.details.kind, status.details.group, status.details.name) == (
        "PyTorchJob", "kubeflow.org", "train",
    )  # fmt: skip


def test_number_of_reported_errors_is_limited() -> None:
    written = job()
    containers = [{"name": f"c{number}"} for number in range(300)]
    written["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"] += containers
    status = refusal(written)
    assert status.details is not None
    assert len(status.details.causes) == review.MAX_CAUSES
    assert " more]" in status.message


def test_what_was_wrong_before_is_not_held_against_a_change_of_something_else() -> None:
    old = with_mistakes()
    new = copy.deepcopy(old)
    new["metadata"]["finalizers"] = []
    new["metadata"]["labels"] = {"team": "a"}
    assert review.validate(ask(new, old)).allowed
    new["spec"]["runPolicy"]["suspend"] = True
    assert review.validate(ask(new, old)).allowed


def test_a_change_may_not_bring_in_a_mistake_nor_another_value_as_wrong_as_before() -> None:
    old = with_mistakes()
    new = copy.deepcopy(old)
    new["spec"]["nprocPerNode"] = "lots"
    new["spec"]["runPolicy"]["ttlSecondsAfterFinished"] = -5
    fields = {"spec.nprocPerNode", "spec.runPolicy.ttlSecondsAfterFinished"}
    assert causes(refusal(new, old)).keys() == fields


def test_what_cannot_be_changed_is_held_against_the_job_before() -> None:
    """Upstream compares the new PyTorchJob with itself, and lets this pass."""
    old, new = job(), job()
    old["spec"]["runPolicy"] = {"managedBy": "kubeflow.org/training-operator"}
    new["spec"]["runPolicy"] = {"managedBy": "kueue.x-k8s.io/multikueue"}
    assert "spec.runPolicy.managedBy" in refusal(new, old).message


def test_a_job_that_is_being_deleted_may_be_changed_in_any_way() -> None:
    new = with_mistakes()
    new["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:00Z"
    assert review.validate(ask(new, job())).allowed


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(ask(None, with_mistakes(), "DELETE"), id="deletion"),
        pytest.param(ask(with_mistakes(), sub_resource="status"), id="status"),
        pytest.param(ask({"apiVersion": "a/v1", "kind": "Other"}), id="another kind"),
        pytest.param(ask(None, operation="CONNECT"), id="connect"),
        pytest.param(ask(job(), job(metadata=None)), id="an old job without metadata"),
    ],
)
def test_what_is_none_of_its_business_is_allowed(question: ReviewRequest) -> None:
    assert review.validate(question).allowed


@pytest.mark.parametrize("new", [None, {}, {"apiVersion": ["v1"], "kind": {}}, {"kind": "Job"}])
def test_review_of_an_object_without_kind_is_refused(new: Json | None) -> None:
    status = refusal(new)
    assert status.code == 400
    assert "no object with apiVersion and kind" in status.message
    assert review.mutate(ask(new), lambda _: [{"op": "add"}]).patch is None


def test_an_old_job_that_cannot_be_read_is_no_hindrance() -> None:
    old = job(spec={"pytorchReplicaSpecs": 3})
    assert review.validate(ask(job(), old)).allowed
    assert not review.validate(ask(with_mistakes(), old)).allowed


def test_spec_of_a_wrong_type_is_reported() -> None:
    for spec in (None, 3, [], "x", {"pytorchReplicaSpecs": {"Worker": None}}):
        assert not review.validate(ask(job(spec=spec))).allowed, spec


def nested(levels: int, innermost: str) -> Json:
    inner: Any = innermost
    for _ in range(levels):
        inner = {"a": inner}
    written = job()
    written["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["affinity"] = inner
    return written


@pytest.mark.parametrize("levels", [200, 400, 480, 600, 900, 2000, 50_000])
def test_an_object_that_is_nested_deeply_is_answered(levels: int) -> None:
    new, old = nested(levels, "x"), nested(levels, "y")
    for question in (ask(new), ask(new, old)):
        answer = review.validate(question)
        reported = (answer.status or Status()).message
        assert answer.allowed or "nested too deeply" in reported
        assert answer.allowed or levels > 200
        assert not answer.allowed or levels < 2000
        assert review.mutate(question, DEFAULTING.patch_operations).allowed


def with_unread_fields(*fields: str) -> Json:
    written = job()
    written["spec"] |= dict.fromkeys(fields, 1)
    return written


def test_warning_is_returned_if_the_specification_is_new_or_changed() -> None:
    (warning,) = review.validate(ask(with_unread_fields("x"))).warnings or ()
    assert warning.startswith("spec.x: ")
    assert review.validate(ask(with_unread_fields("x"), job())).warnings == [warning]
    renamed = with_unread_fields("x")
    renamed["metadata"]["labels"] = {"team": "a"}
    assert review.validate(ask(renamed, with_unread_fields("x"))).warnings is None


def test_warning_about_the_old_specification_is_not_repeated() -> None:
    answer = review.validate(ask(with_unread_fields("x", "y"), with_unread_fields("x")))
    (warning,) = answer.warnings or ()
    assert warning.startswith("spec.y: ")


def test_warnings_are_limited_in_number_and_length() -> None:
    fields = (f"f{number}{'x' * 500}" for number in range(40))
    warnings = review.validate(ask(with_unread_fields(*fields))).warnings or ()
    assert len(warnings) == review.MAX_WARNINGS
    assert {len(text) for text in warnings} == {review.MAX_WARNING_LENGTH}


def test_defaults_come_as_a_patch() -> None:
    operation = {"op": "add", "path": "/spec/x", "value": 1}
    answer = review.mutate(ask(job()), lambda _: [operation])
    assert answer.allowed
    assert answer.patch_type == "JSONPatch"
    assert msgspec.json.decode(base64.b64decode(answer.patch or "")) == [operation]


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(ask(job(), job()), id="nothing of the specification changes"),
        pytest.param(ask(None, job(), "DELETE"), id="deletion"),
        pytest.param(ask(job(), sub_resource="scale"), id="subresource"),
        pytest.param(ask(None), id="no object"),
    ],
)
def test_defaults_are_not_written_where_no_specification_is(question: ReviewRequest) -> None:
    answer = review.mutate(question, lambda _: [{"op": "add"}])
    assert (answer.allowed, answer.patch) == (True, None)


def test_a_review_is_read_and_answered_in_the_form_of_the_wire() -> None:
    request = {
        "uid": "u", "operation": "CREATE", "object": job(), "oldObject": None, "dryRun": True,
        "kind": {"group": "kubeflow.org", "version": "v1", "kind": "PyTorchJob"},
        "options": {"kind": "CreateOptions"}, "userInfo": {"extra": {"a": ["b"]}},
    }  # fmt: skip
    question = review.parse_review(on_the_wire(request))
    assert question.is_applicable
    written = msgspec.json.decode(review.format_review(review.validate(question)))
    assert written == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "u", "allowed": True},
    }
    denial = msgspec.json.decode(review.format_review(review.validate(ask(with_mistakes()))))[
        "response"
    ]
    assert denial["allowed"] is False
    assert denial["status"]["details"]["causes"]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        pytest.param(b"", "is no AdmissionReview", id="empty"),
        pytest.param(b"junk", "is no AdmissionReview", id="junk"),
        pytest.param(b"\xff\xfe{}", "is no AdmissionReview", id="binary"),
        pytest.param(b"[]", "is no AdmissionReview", id="a list"),
        pytest.param(b"{}", "nothing of no version", id="an empty object"),
        pytest.param(on_the_wire(None), "no request with a uid", id="no request"),
        pytest.param(on_the_wire({}), "no request with a uid", id="no uid"),
        pytest.param(on_the_wire({"uid": 7}), "is no AdmissionReview", id="a number as uid"),
        pytest.param(on_the_wire({"uid": "u", "object": []}), "is no Adm", id="a list as object"),
        pytest.param(
            on_the_wire({"uid": "u"}, apiVersion="admission.k8s.io/v1beta1"),
            "not AdmissionReview of admission.k8s.io/v1",
            id="an older version",
        ),
        pytest.param(
            b'{"request":' + b'{"object":' * 100_000, "nested too deeply", id="nested deeply"
        ),
    ],
)
def test_body_that_is_no_review_is_refused_with_the_reason(body: bytes, complaint: str) -> None:
    with pytest.raises(InvalidReview, match=complaint):
        review.parse_review(body)


class StoredJob:
    """A client whose API server has one job."""

    def __init__(self, written: Json | None) -> None:
        self.written = written

    async def get(self, resource: Any, name: str, namespace: str) -> Json:
        if self.written is None:
            raise NotFound(Status(status="Failure", code=404))
        assert (resource.kind, name, namespace) == (self.written["kind"], "asked", "team")
        return copy.deepcopy(self.written)


async def review_scale(kind: JobKind, written: Json | None, replicas: int) -> Status | None:
    reviewed = ReviewedResource(kind.resource.group, kind.resource.plural)
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": replicas}}
    request = ask(scale, scale, name="asked", namespace="team", sub_resource="scale")
    request = msgspec.structs.replace(request, resource=reviewed)
    client: Any = StoredJob(written)
    answer = review.JobValidator(client).review(request)
    assert not isinstance(answer, AdmissionResponse)
    return (await answer).status


SCALABLE = [kind for kind in KINDS.values() if kind.framework.kind.entry.is_scalable]


@pytest.mark.parametrize("kind", SCALABLE, ids=lambda kind: kind.name)
async def test_scale_is_validated_as_a_change_of_the_job_is(kind: KindUnderTest) -> None:
    entry, written = kind.framework.kind.entry, kind.job(2)
    assert await review_scale(entry, written, 3) is None
    refused = await review_scale(entry, written, MAX_JOB_REPLICAS + 1)
    changed = ask(kind.scale(written, MAX_JOB_REPLICAS + 1), written, name="asked")
    assert refused is not None
    assert refused == review.validate(changed).status


async def test_scale_of_a_job_is_held_against_its_bounds_and_the_length_of_its_names() -> None:
    kind = KINDS["PyTorchJob"].framework.kind.entry
    elastic = manifest(None, 2)
    elastic["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 3}
    for replicas, problem in ((5, "more than maxReplicas 3"), (0, "less than minReplicas 1")):
        status = await review_scale(kind, elastic, replicas)
        assert status is not None
        assert f"Worker.replicas: {replicas} is {problem}" in status.message
    named = manifest(1, 2)
    named["metadata"]["name"] = "n" * 54
    status = await review_scale(kind, named, 11)
    assert status is not None
    assert "n-worker-10" in status.message
    assert await review_scale(kind, named, 10) is None
    assert await review_scale(kind, None, 5) is None, "the API server answers that it is missing"


def test_no_warning_is_about_a_default_that_the_webhook_writes() -> None:
    template = {"spec": {"containers": [{"name": "c", "image": "busybox", "command": ["sleep"]}]}}
    roles = {name: {"replicas": 1, "template": template} for name in ("Launcher", "Worker")}
    plain = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "plain"},
             "spec": {"mpiReplicaSpecs": roles}}  # fmt: skip
    assert review.validate(ask(plain)).warnings is None


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
