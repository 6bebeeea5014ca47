"""From a container's spec to a plan for the runtime: command, user, limits, mounts, image and GPUs.

``plan`` builds the plan and assigns GPUs. ``images`` maps image names to environments.
"""
