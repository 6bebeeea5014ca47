"""Jobs from Python: submit, list, wait for, diagnose and delete them, and read their logs.

    from gangline.sdk import Client

    client = Client()
    job = client.run(train, workers=3, image="pytorch/pytorch:2.7.1", name="digits")
    for line in job.logs(follow=True):
        print(line.replica, line.text)
    accuracy = job.result()

What a training needs is planned before it is submitted:

    from gangline.sdk import PlanRequest, find_device, model_of_size, plan

    planned = plan(PlanRequest(model_of_size(7e9, sequence=4096), find_device("H100"), devices=64))
    print(planned.choices[0].layout_title, planned.choices[0].training_s)

``AsyncClient`` has the same methods as coroutines. Modules, from high to low: ``session`` (both
clients), ``cluster_checks`` and ``diagnosis`` (why a job failed or does not run), ``client``
(requests to the cluster), ``logs`` (merges the output of the replicas), ``jobs`` (state of a job).
The command line is a thin layer over them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gangline.sdk.client import NoSuchJob as NoSuchJob
    from gangline.sdk.handle import FunctionFailed as FunctionFailed
    from gangline.sdk.handle import JobHandle as JobHandle
    from gangline.sdk.session import AsyncClient as AsyncClient
    from gangline.sdk.session import Client as Client
    from gangline.sizing.hardware import DeviceModel as DeviceModel
    from gangline.sizing.hardware import find_device as find_device
    from gangline.sizing.model import ModelShape as ModelShape
    from gangline.sizing.plan import Plan as Plan
    from gangline.sizing.plan import PlanRequest as PlanRequest
    from gangline.sizing.plan import make_plan as plan
    from gangline.sizing.transformer import TransformerModel as TransformerModel
    from gangline.sizing.transformer import model_of_config as model_of_config
    from gangline.sizing.transformer import model_of_size as model_of_size

_MODULES = {
    "AsyncClient": "gangline.sdk.session",
    "Client": "gangline.sdk.session",
    "Device": "gangline.sizing.hardware",
    "FunctionFailed": "gangline.sdk.handle",
    "JobHandle": "gangline.sdk.handle",
    "ModelShape": "gangline.sizing.model",
    "NoSuchJob": "gangline.sdk.client",
    "Plan": "gangline.sizing.plan",
    "PlanRequest": "gangline.sizing.plan",
    "TransformerModel": "gangline.sizing.transformer",
    "find_device": "gangline.sizing.hardware",
    "model_of_config": "gangline.sizing.transformer",
    "model_of_size": "gangline.sizing.transformer",
    "plan": "gangline.sizing.plan",
}
_NAMES = {"plan": "make_plan"}

__all__ = [
    "AsyncClient",
    "Client",
    "Device",
    "FunctionFailed",
    "JobHandle",
    "ModelShape",
    "NoSuchJob",
    "Plan",
    "PlanRequest",
    "TransformerModel",
    "find_device",
    "model_of_config",
    "model_of_size",
    "plan",
]


def __getattr__(name: str) -> Any:
    # Late: the model of a job is usable without importing the API client.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_MODULES[name]), _NAMES.get(name, name))
    except ModuleNotFoundError as error:
        from gangline.extras import explain_missing

        if not (missing := explain_missing(error))[0]:
            raise
        raise ImportError("{}: {}".format(*missing)) from error
