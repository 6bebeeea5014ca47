"""From flags to objects: what ``gangline submit KIND`` makes. Pure but for reading local files."""
