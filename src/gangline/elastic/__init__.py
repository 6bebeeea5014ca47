"""Elastic training: launcher, agent, master, node check, data shards, checkpoints, trainer.

It must import on a training image without Kubernetes libraries and depends on ``gangline.api`` at
most. Torch is imported only in worker processes.
"""
