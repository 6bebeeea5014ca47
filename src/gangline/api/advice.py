"""What a job says and its author hardly means: no mistakes, and so no reason to refuse it.

Upstream's operators take all of it without a word. The webhook answers with it as warnings, which
``kubectl`` prints; the command line prints it too.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from gangline.api.checks import elastic, jax, mindspore, mpi, paddle, pytorch, tensorflow, xgboost
from gangline.api.elastic import ElasticJob
from gangline.api.fielderror import FieldError
from gangline.api.jax import JAXJob
from gangline.api.kubeflow import PyTorchJob
from gangline.api.meta import Object
from gangline.api.mindspore import MSJob
from gangline.api.mpi import MPIJob
from gangline.api.paddle import PaddleJob
from gangline.api.shape import check_shape
from gangline.api.tensorflow import TFJob
from gangline.api.xgboost import XGBoostJob

_KUBEFLOW = "kubeflow.org/v1"

_KINDS: Mapping[tuple[Any, Any], tuple[type[Object], Callable[[Any], Iterable[FieldError]]]] = {
    (_KUBEFLOW, "PyTorchJob"): (PyTorchJob, pytorch.advise),
    (_KUBEFLOW, "TFJob"): (TFJob, tensorflow.advise),
    (_KUBEFLOW, "JAXJob"): (JAXJob, jax.advise),
    (_KUBEFLOW, "XGBoostJob"): (XGBoostJob, xgboost.advise),
    (_KUBEFLOW, "MPIJob"): (MPIJob, mpi.advise),
    ("mindspore.gitee.com/v1", "MSJob"): (MSJob, mindspore.advise),
    ("batch.paddlepaddle.org/v1", "PaddleJob"): (PaddleJob, paddle.advise),
    ("elastic.iml.github.io/v1alpha1", "ElasticJob"): (ElasticJob, elastic.advise),
}


def advise_manifest(manifest: Mapping[str, Any]) -> list[FieldError]:
    """List what is worth a warning in an object of one of our kinds; none in other objects.

    Parts that do not have the right shape are left to ``validate_manifest``.
    """
    named = manifest.get("apiVersion"), manifest.get("kind")
    known = _KINDS.get(named) if all(isinstance(word, str) for word in named) else None
    if known is None:
        return []
    type_, advise = known
    try:
        job = msgspec.convert(check_shape(manifest, type_).sound, type_)
    except msgspec.ValidationError:
        return []
    return list(advise(job))
