"""Train trees to classify tumours, each process on its share of the data.

A plain XGBoost script without any knowledge of Kubernetes. It reads DMLC_TRACKER_URI,
DMLC_TRACKER_PORT, DMLC_TASK_ID and DMLC_NUM_WORKER, which a TrainJob with the xgboost runtime sets.
Process 0 runs the tracker, by which the processes find each other; then all sum their histograms,
so every process has the same trees. The data set is scikit-learn's: 569 tumours with 30
measurements each, malignant or benign.
"""

import hashlib
import os
import socket
import threading

import numpy
import xgboost
from sklearn.datasets import load_breast_cancer
from xgboost import collective
from xgboost.tracker import RabitTracker

ROUNDS = 20


def start_tracker(workers: int, port: int) -> None:
    """Start the tracker in this process; it ends with the last worker."""
    tracker = RabitTracker(
        host_ip=socket.gethostbyname(socket.gethostname()), n_workers=workers, port=port
    )
    tracker.start()
    threading.Thread(target=tracker.wait_for, daemon=True).start()


def main() -> None:
    """Train on this process's share, and print the accuracy on data that none has seen."""
    rank, workers = int(os.environ["DMLC_TASK_ID"]), int(os.environ["DMLC_NUM_WORKER"])
    host, port = os.environ["DMLC_TRACKER_URI"], int(os.environ["DMLC_TRACKER_PORT"])
    if rank == 0:
        start_tracker(workers, port)
    records, labels = load_breast_cancer(return_X_y=True)
    order = numpy.random.default_rng(0).permutation(len(labels))
    train, test = order[:456], order[456:]
    with collective.CommunicatorContext(
        dmlc_communicator="rabit",
        dmlc_tracker_uri=host,
        dmlc_tracker_port=port,
        dmlc_task_id=str(rank),
        dmlc_retry=60,
    ):
        own = train[collective.get_rank() :: workers]
        model = xgboost.train(
            {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 3, "nthread": 1},
            xgboost.DMatrix(records[own], labels[own]),
            num_boost_round=ROUNDS,
        )
        found = model.predict(xgboost.DMatrix(records[test])) > 0.5
        accuracy = float((found == labels[test]).mean())
        trees = hashlib.sha256(model.save_raw()).hexdigest()[:12]
        print(f"process {collective.get_rank()} of {workers}: {len(own)} tumours, trees {trees}")
        print(f"test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
