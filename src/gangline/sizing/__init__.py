"""Sizing: the parameters, operations, memory, traffic and time of a training, by arithmetic.

Pure: no I/O, no torch. From low to high: ``model`` (shape and parameters), ``sources``
(where shapes come from), ``flops``, ``precision``, ``layout``, ``hardware``, ``memory``,
``traffic``, ``steptime``, ``storage``, ``uncertainty``, ``measured`` (calibrations), then
``search`` (layouts that fit), ``plan`` (the answer) and ``report`` (the answer as plain data).
It imports nothing of Gangline.
"""
