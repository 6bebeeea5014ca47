"""Publication: what the Brain writes to the API server.

``plans`` (an action as ScalePlan or tuning), ``publisher`` (advice as users see it, its events,
learned run times). Nothing else is written, and never a pod, a binding or the
specification of a job.
"""
