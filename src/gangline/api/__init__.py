"""Types of the Kubernetes, Volcano and training-job objects, and the rules for them. No I/O.

Order of the parts, from high to low; each imports only what is below it:

1. ``validation``: errors and warnings in manifests; ``crd``: the CustomResourceDefinitions.
2. ``schema``: OpenAPI schemas made from structs; ``resources``: the table of kinds; ``failure``:
   what ended a pod or process.
3. ``jobs``, ``volcano``, ``cluster``, ``core``: the structs of the kinds.
4. ``meta``: what all objects share; ``quantity``, ``names``, ``jsonpath``, ``yaml_text``: values.
"""
