"""The program of initializer pods: fetches data or a model before a training.

``gangline initialize dataset`` (or ``model``) reads its source and credentials from variables, as
upstream's initializers do, and writes into the folder that the training mounts. An interrupted
fetch continues, sizes and digests are checked where the source gives them, and a mark at the end
makes a restart fetch nothing.

Nothing here needs a cluster. The clients of the sources (``huggingface_hub``, ``obstore``) are the
extra ``initializer`` and are imported when a source needs them.
"""
