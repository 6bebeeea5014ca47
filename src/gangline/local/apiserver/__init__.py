"""The embedded API server: the subset of kube-apiserver that training jobs and kubectl need.

Layers, low to high: ``machinery`` (objects as plain JSON, pure), ``core`` (kinds, requests,
errors), ``storage``, ``auth``, ``watch``, ``crds``, ``admission``, ``verbs``, ``kubelet_proxy``,
``endpoints``; then ``http``, ``bootstrap``, ``crd_finalizer`` and ``server``, which assembles them.

Life of a write: ``http`` authenticates and authorizes, ``verbs`` prepares the new state without a
pause of the event loop, ``storage`` commits it to SQLite, and ``watch`` sends it to all watchers.
Invariant: no client sees a state that a crash could revert.
"""
