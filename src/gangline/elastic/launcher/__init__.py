"""The launcher: ``gangline run``, ``dlrover-run`` and ``python -m gangline.elastic.launcher``.

It takes the flags of torchrun and of dlrover-run. ``flags`` lists and parses them (from the command
line and ``PET_*`` variables), ``settings`` and ``rendezvous_config`` turn them into the agent's
settings or refuse them with a reason, ``main`` starts the agent. Torch is never imported here, and
a start on one node imports neither the master's protocol nor the node check.
"""
