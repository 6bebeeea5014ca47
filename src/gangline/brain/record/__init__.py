"""The record of each job run, for its page when it is gone: observed, masked, written.

``observe`` is the pure planner: which entries follow from the observed state of a job. ``recorder``
watches, reads the logs of failed replicas before their pods go, and writes when a job ends and
every 30 seconds while it runs. Reasons, findings and figures are those of ``sdk`` and ``api``;
nothing is computed a second time here.
"""
