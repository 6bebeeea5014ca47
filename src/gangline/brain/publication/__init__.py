"""Publication: what the Brain writes to the API server.

``items`` (advice as users see it) and ``plans`` (an action as ScalePlan or tuning) are pure.
``publisher`` writes JobAdvice and events, ``actuator`` plans and tuning, ``estimates`` learned run
times. Nothing else is written, and never a pod, a binding or the specification of a job.
"""
