"""Warnings: settings in a job manifest that are valid but probably not intended.

They are no errors, so no job is refused because of them; the upstream operators accept all of them
silently. The webhook returns them as warnings, which ``kubectl`` prints; the command line prints
them too.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from gangline.api.jobs.elastic import ElasticJob
from gangline.api.jobs.jax import JAXJob
from gangline.api.jobs.kubeflow import PyTorchJob
from gangline.api.jobs.mindspore import MSJob
from gangline.api.jobs.mpi import MPIJob
from gangline.api.jobs.paddle import PaddleJob
from gangline.api.jobs.tensorflow import TFJob
from gangline.api.jobs.xgboost import XGBoostJob
from gangline.api.meta.objects import Object
from gangline.api.schema.check import check_schema
from gangline.api.schema.field_error import FieldError
from gangline.api.validation.jobs import (
    elastic,
    jax,
    mindspore,
    mpi,
    paddle,
    pytorch,
    tensorflow,
    xgboost,
)

_KUBEFLOW = "kubeflow.org/v1"

_KINDS: Mapping[tuple[Any, Any], tuple[type[Object], Callable[[Any], Iterable[FieldError]]]] = {
    (_KUBEFLOW, "PyTorchJob"): (PyTorchJob, pytorch.pytorch_job_warnings),
    (_KUBEFLOW, "TFJob"): (TFJob, tensorflow.tf_job_warnings),
    (_KUBEFLOW, "JAXJob"): (JAXJob, jax.jax_job_warnings),
    (_KUBEFLOW, "XGBoostJob"): (XGBoostJob, xgboost.xgboost_job_warnings),
    (_KUBEFLOW, "MPIJob"): (MPIJob, mpi.mpi_job_warnings),
    ("mindspore.gitee.com/v1", "MSJob"): (MSJob, mindspore.ms_job_warnings),
    ("batch.paddlepaddle.org/v1", "PaddleJob"): (PaddleJob, paddle.paddle_job_warnings),
    ("elastic.iml.github.io/v1alpha1", "ElasticJob"): (ElasticJob, elastic.elastic_job_warnings),
}


def manifest_warnings(manifest: Mapping[str, Any]) -> list[FieldError]:
    """Return the warnings for a manifest of a training job; none for objects of other kinds.

    Fields of the wrong type are skipped: ``validate_manifest`` reports them.
    """
    version_and_kind = manifest.get("apiVersion"), manifest.get("kind")
    is_text = all(isinstance(part, str) for part in version_and_kind)
    known = _KINDS.get(version_and_kind) if is_text else None
    if known is None:
        return []
    type_, advise = known
    try:
        job = msgspec.convert(check_schema(manifest, type_).valid, type_)
    except msgspec.ValidationError:
        return []
    return list(advise(job))
