"""From flags to objects: the manifests that ``gangline submit KIND`` creates."""
