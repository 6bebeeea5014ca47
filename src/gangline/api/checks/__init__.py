"""What no schema can say of a job: one module for each kind, and what they have in common."""
