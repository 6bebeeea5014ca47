"""A training process that saves step 4 and then waits: ``saved_worker.py FOLDER LINGER_S``."""

import signal
import sys

import torch

from gangline.elastic.checkpoint import Checkpointer

checkpointer = Checkpointer(sys.argv[1], linger_s=float(sys.argv[2]))
checkpointer.save(4, {"w": torch.ones(1000)})
print(checkpointer.job_folder, flush=True)
signal.pause()
