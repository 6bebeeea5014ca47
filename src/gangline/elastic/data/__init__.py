"""Data shards: records of a data set handed out to whoever is there to train on them."""
