"""View models: what each page shows, as frozen structs of observed objects and a clock.

Pure. Templates only print them, and the JSON form of a page is the same struct. States, reasons and
figures are those of ``api``, ``sdk`` and the scheduler, which the command line prints too; a view
selects, sorts and counts them.
"""
