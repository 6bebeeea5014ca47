"""Namespace controllers: deletion of terminating namespaces, and the default objects of new ones.

``controller`` deletes the content of a terminating namespace. ``defaults`` creates the default
service account and the CA bundle.
"""
