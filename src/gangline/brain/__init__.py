"""The Brain: learns what jobs need, advises, and resizes elastic jobs where that is allowed.

In the order of imports: ``facts`` (what is known of jobs, and which of it is believed), ``models``
(arithmetic that is fitted to facts: histograms, throughput, noise), ``advisers`` (each derives one
kind of advice from a view of a job), ``guard`` (which advice may be applied now), ``allocation``
(sizes of all elastic jobs together), ``store`` (SQL database of the history), then the programs:
``collection`` from the API server, ``publication``, ``server`` (HTTP), ``evaluation`` (the cycle).
``facts``, ``models``, ``advisers``, ``guard`` and ``allocation`` are pure: no I/O and no clock.

No process of a job waits for the Brain. It writes advice, ScalePlans and the tuning of a job; never
pods, bindings or the specification of a job. Imports ``sizing``, ``kube`` and ``api`` only.
"""
