"""The embedded API server: the subset of kube-apiserver that training jobs and kubectl need.

Layers, low to high: ``machinery`` (objects as plain JSON, pure), ``core`` (kinds, requests,
errors), ``storage``, then ``audit``, ``auth`` and ``watch``, then ``crds``, ``kubelet_proxy``,
``flowcontrol`` and ``quota``, then ``admission``, ``verbs``, ``endpoints``; then ``http``,
``bootstrap``, ``cluster_roles``, ``crd_finalizer``, ``event_expiry`` and ``server``, which
assembles them.

Life of a write: ``http`` authenticates and authorizes, ``verbs`` prepares the new state without a
pause of the event loop, ``storage`` commits it to SQLite, and ``watch`` sends it to all watchers.
Invariant: no client sees a state that a crash could revert.
"""
