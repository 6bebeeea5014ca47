"""ElasticJob: elastic training with a master, compatible with DLRover.

``framework`` reads the job, ``rules`` decides success, failure and replacement from ``failures``,
``tolerance``, ``nodes`` and ``memory``; ``pods``, ``master`` and ``secret`` build objects;
``status`` reads and writes DLRover's status fields.
"""
