"""The Pod Security Standards: https://kubernetes.io/docs/concepts/security/pod-security-standards.

``policy`` reads the labels of a namespace, ``baseline`` and ``restricted`` have one function per
control of a level, ``evaluate`` applies those of a level and a version. Reasons and details are
those of Kubernetes' admission plug-in, so that its users recognise them.
"""
