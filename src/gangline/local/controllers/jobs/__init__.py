"""Job controller: runs pods of batch/v1 Jobs until enough have succeeded, or too many failed.

``plan`` (pure) compares a Job with its pods and counts each ended pod once: a finalizer keeps the
pod until its result is in the status. ``policies`` (pure) has the rules on failures and success.
Jobs with another ``managedBy`` are left alone.
"""
