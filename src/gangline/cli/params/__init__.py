"""Options and arguments that several commands take.

``profiles`` reads the user's settings, ``target`` chooses cluster and namespace from flags,
environment and settings, ``completers`` completes names by asking the cluster, ``options`` and
``job_selection`` are click decorators, ``session`` connects a command to its cluster,
``env_options`` adds options that an environment variable may set. Modules import ``render``,
``errors`` and the SDK.
"""
