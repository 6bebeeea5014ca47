"""Survivors: when a worker is lost, the others keep running and form the next process group.

``coordinator`` decides which workers form a group, ``orders`` carries the decisions through the
store of the attempt. The agent's side is ``gangline.elastic.agent.survivors``, that of a worker
``gangline.elastic.trainer.survivors``.
"""
