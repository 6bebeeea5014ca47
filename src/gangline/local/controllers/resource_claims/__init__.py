"""Claims of devices: created for pods from templates, and freed when no pod uses them.

* `plan`: the decisions for one pod and one claim.
* `controller`: carries them out.
"""
