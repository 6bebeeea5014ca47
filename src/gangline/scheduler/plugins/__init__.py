"""Policies of placement, one small module each: which nodes will do, and which is best."""
