"""What runs in and for training processes: launcher, agent, master, data, checkpoints.

It must import on a training image without Kubernetes libraries and depends on ``gangline.api`` at
most; torch is imported only in worker processes.
"""
