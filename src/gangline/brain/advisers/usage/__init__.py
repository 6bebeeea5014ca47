"""What roles use of memory and CPU: evidence, sizes derived from it, and the advice on them.

``peaks`` collects what runs show, ``memory_size`` and ``cpu_size`` derive numbers, ``growth``
foretells, ``memory_advice`` and ``cpu_advice`` decide what is advised. ``rightsize`` joins them.
"""
