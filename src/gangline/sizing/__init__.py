"""Sizing: the parameters, operations, memory, traffic and time of a training, by arithmetic.

Pure: no I/O, no torch. From low to high: ``model`` (shape, parameters, operations), ``sources``
(where shapes come from), ``hardware``, ``layout``, ``memory``, ``steptime``, ``storage``,
``calibration`` (measured figures), ``traced`` and ``transformer`` (models that can be planned),
``plan`` (layouts that fit, and the answer), ``goals`` and ``report`` (what follows from it).
It imports nothing of Gangline.
"""
