"""The rules of a job's life, one file each: pure functions over the common form."""
