"""The launcher: ``gangline run``, ``dlrover-run`` and ``python -m gangline.elastic.launcher``.

It takes the flags of torchrun and of dlrover-run. ``flags`` lists them, ``parsing`` reads them
from the command line and from ``PET_*`` variables, ``plan`` makes the agent's settings of them or
refuses with a reason, ``main`` starts the agent. Torch is never imported here.
"""
