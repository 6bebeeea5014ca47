"""Jobs from Python: submit them, look at them, wait for them, read their logs, delete them.

    async with Client(load_config()) as client:
        jobs = JobClient(client)
        await jobs.submit(manifest)
        job = await jobs.wait("digits", "default")

``jobs`` says what a job is and how it is doing, ``client`` talks to the cluster, ``logs`` merges
what the replicas write. The command line is a thin layer over these.
"""
