"""The operator: turns job resources into pods, services, pod groups and status.

From top to bottom, each layer imports only lower ones:

- ``main``: the component;
- ``adoption_controller``, ``scaleplan``: controllers beside the engine, each with its own queue;
- ``engine``: observe, plan, apply; ``frameworks``: one module or package for each job kind;
- ``settings``; ``webhook``: admission of jobs;
- ``policies``: restart, backoff, clean-up and pod group rules; ``metrics``;
- ``model``: the common form of a job, which all layers share.
"""
