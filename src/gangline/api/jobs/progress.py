"""The progress that a training reports: percentage, time left and metrics.

Types, limits, paths and token audiences are those of Kubeflow Trainer's status server, which has
them for TrainJobs; here they serve every kind. A pod reports to the path of its own job, with a
token whose audience names that job.
"""

from datetime import datetime
from typing import Annotated, Any, Final

from gangline.api.meta.field_doc import doc
from gangline.api.meta.objects import Wire
from gangline.api.meta.resource import Resource

URL_VARIABLE: Final = "KUBEFLOW_TRAINER_SERVER_URL"
CA_VARIABLE: Final = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
TOKEN_VARIABLE: Final = "KUBEFLOW_TRAINER_SERVER_TOKEN"
AUTHORITY_CONFIG_MAP: Final = "gangline-progress-ca"
"""ConfigMap in each namespace with jobs: the CAs of the server."""
AUTHORITY_KEY: Final = "ca.crt"
MAX_METRICS: Final = 256
MAX_METRIC_LENGTH: Final = 64


class ReportedMetric(Wire):
    """A metric of the model."""

    name: Annotated[
        str, doc("Such as loss.", required=True, minLength=1, maxLength=MAX_METRIC_LENGTH)
    ] = ""
    value: Annotated[
        str, doc("The number, as text.", required=True, minLength=1, maxLength=MAX_METRIC_LENGTH)
    ] = ""


class TrainerStatus(Wire):
    """What the training has reported last."""

    progress_percentage: Annotated[
        int | None, doc("How complete the training is.", minimum=0, maximum=100)
    ] = None
    estimated_remaining_seconds: Annotated[
        int | None, doc("Estimated seconds until it is complete.", minimum=0)
    ] = None
    metrics: Annotated[list[ReportedMetric], doc("Metrics.", maxItems=MAX_METRICS)] = []
    last_updated_time: Annotated[datetime | None, doc("Time of the report.")] = None


def report_path(resource: Resource[Any], namespace: str, name: str) -> str:
    """Return the path to which the pods of a job report."""
    return resource.path(namespace, name, "status")


def token_audience(resource: Resource[Any], namespace: str, name: str) -> str:
    """Return the audience of the tokens with which the pods of a job report."""
    return report_path(resource, namespace, name).removeprefix("/apis/")
