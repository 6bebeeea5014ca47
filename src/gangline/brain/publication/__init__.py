"""Publication: what the Brain writes to the API server.

``items`` (advice as users see it, learned run times), ``plans`` (an action as ScalePlan or tuning),
``publisher`` (JobAdvice and events). Nothing else is written, and never a pod, a binding or the
specification of a job.
"""
