"""From a container's spec to a plan for the runtime: command, user, limits, mounts, image and GPUs.

``plan`` builds the plan. ``images`` maps image names to environments of this machine, ``devices``
assigns GPUs.
"""
