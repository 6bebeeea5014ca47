"""ScalePlans: requested changes of an ElasticJob's size and resources.

``effect`` computes what a plan changes, ``plan`` decides the next step, ``controller`` writes it.
Imports ``engine``, ``frameworks.elastic`` and what they import.
"""
