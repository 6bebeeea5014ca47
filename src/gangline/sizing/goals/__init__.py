"""Jobs and plans: ``record`` (a plan in a job's annotation), ``job_check`` (a job's request)."""
