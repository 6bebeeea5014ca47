"""The sources of initializers: repositories of Hugging Face, buckets, folders."""
