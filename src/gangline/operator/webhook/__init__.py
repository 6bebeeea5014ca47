"""Admission: jobs are checked, and shown with their defaults, before the API server stores them."""
