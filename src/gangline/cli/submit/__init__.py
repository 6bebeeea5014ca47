"""From flags or files to created objects.

``options`` declares the flags of ``submit KIND``, ``command`` accepts Arena's spellings,
``user_settings`` fills in defaults, ``parsers`` read values, ``from_flags`` turns them into
``flags.JobFlags`` and then into objects: ``builders`` for the job, ``code_sync`` and
``owned_objects`` for what the job owns. ``manifests`` reads files instead. ``preflight`` checks
that referenced objects exist, ``submission`` creates, follows and waits. Modules import ``params``,
``render`` and the SDK.
"""
