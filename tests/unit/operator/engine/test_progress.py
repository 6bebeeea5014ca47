"""What pods get to report their progress, and how a report stays in the status of each kind."""

from typing import Any

import msgspec
import pytest

from gangline.api.jobs.progress import CA_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE
from gangline.operator.engine.manifests import with_progress_endpoint
from gangline.operator.engine.status import decode_status, encode_status, kind_fields
from unit.operator.builders import manifest as pytorch_job
from unit.operator.builders import read
from unit.operator.kinds import KINDS

FOLDER = "/var/run/secrets/kubeflow/trainer"
SERVER = "https://gangline-operator.gangline-system.svc"


def reporting(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """The specification of a pod of a PyTorchJob, with the endpoint."""
    given = {"spec": {"containers": list(containers), **spec}}
    written: dict[str, Any] = with_progress_endpoint(read(pytorch_job(1)), given, SERVER)["spec"]
    return written


def test_all_containers_get_the_address_of_their_job_and_its_token() -> None:
    pod = reporting({"name": "pytorch"}, {"name": "other", "env": [{"name": "A", "value": "1"}]})
    path = "kubeflow.org/v1/namespaces/team/pytorchjobs/train/status"
    for container in pod["containers"]:
        values = {variable["name"]: variable["value"] for variable in container["env"]}
        assert values.items() >= {
            (URL_VARIABLE, f"{SERVER}/apis/{path}"),
            (CA_VARIABLE, f"{FOLDER}/ca.crt"),
            (TOKEN_VARIABLE, f"{FOLDER}/token"),
        }
        assert [mount["mountPath"] for mount in container["volumeMounts"]] == [FOLDER]
    token, authorities = pod["volumes"][0]["projected"]["sources"]
    assert token["serviceAccountToken"]["audience"] == path
    assert authorities["configMap"]["optional"], "training must not wait for the CAs"


def test_what_the_user_has_set_stays() -> None:
    own = {"name": "pytorch", "env": [{"name": URL_VARIABLE, "value": "https://own"}]}
    mounted = {"name": "b", "volumeMounts": [{"name": "own", "mountPath": f"{FOLDER}/"}]}
    volume = {"name": "kubeflow-trainer-token", "emptyDir": {}}
    pod = reporting(own, mounted, {"name": "c"}, volumes=[volume])
    assert pod["containers"][:2] == [own, mounted]
    first, second = pod["volumes"]
    assert first == volume
    assert [m["name"] for m in pod["containers"][2]["volumeMounts"]] == [second["name"]]
    assert first["name"] != second["name"]


def test_without_the_endpoint_pods_are_as_before() -> None:
    given = {"spec": {"containers": [{"name": "pytorch"}]}}
    assert with_progress_endpoint(read(pytorch_job(1)), given, "") == given


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_report_is_kept_when_the_status_is_written(kind: Any) -> None:
    info = kind.framework.kind
    reported = {"progressPercentage": 45, "lastUpdatedTime": "2026-11-05T12:00:00Z"}
    stored = msgspec.Raw(msgspec.json.encode({"trainerStatus": reported}))
    status = decode_status(info, stored)
    assert status.trainer_status is not None
    again = encode_status(info, status, kind_fields(info, stored))
    written = msgspec.to_builtins(again)
    assert written["trainerStatus"] == reported
    assert "trainerStatus" not in written.get(info.status_field, {})
