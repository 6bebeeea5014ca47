"""Submit a function with the Kubeflow SDK for Python, run it in two pods, print its output.

    python -m pip install -r requirements.txt
    export KUBECONFIG=~/.gangline/kubeconfig
    python kubeflow_sdk.py

The image must contain Python, torch and bash; on the embedded cluster any name will do.
"""

import argparse

from kubeflow.training import TrainingClient


def train(parameters):
    """Runs in each pod. Only this source is sent, so it contains its imports."""
    import os

    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    print(f"rank {rank} of {size} learns at {parameters['rate']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Submit a function with the Kubeflow SDK.")
    parser.add_argument("--name", default="function")
    parser.add_argument("--image", default="pytorch/pytorch:2.7.1-cuda12.6-cudnn9-runtime")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    client = TrainingClient()
    client.create_job(
        name=given.name,
        base_image=given.image,
        train_func=train,
        parameters={"rate": 0.1},
        num_workers=given.workers,
        num_procs_per_worker=1,
        resources_per_worker={"cpu": "1", "memory": "2Gi"},
    )
    client.wait_for_job_conditions(given.name, polling_interval=2)
    logs, _ = client.get_job_logs(given.name, is_master=False)
    for pod in sorted(logs):
        print(f"{pod}: {logs[pod].strip()}")
    client.delete_job(given.name)


if __name__ == "__main__":
    main()
