"""The dashboard: what runs, why something waits, what failed, and the few actions people need.

One server (aiohttp) renders HTML from one shared copy of the cluster, filtered by what each viewer
may read. Pages work without script; with it their parts are renewed by server-sent events.

1. ``observed`` holds the copy, ``watching`` keeps it current, ``sources`` reads what is not.
2. ``rights`` asks the API server as the viewer; a ``Scope`` says what a viewer sees.
3. ``views`` computes what a page shows: pure, frozen structs of an ``Observation`` and a clock.
4. ``rendering`` prints views by templates, which decide nothing; ``texts`` has English and Chinese.
5. ``server`` answers requests, ``streams`` the live ones; ``login`` has one module for each mode.
6. ``actions`` changes jobs with the viewer's own rights.

How a page is added:

1. Its view in ``views/NAME.py``: a ``View`` struct, and a pure function that returns it.
2. An entry in ``PAGES`` (``pages``): name, address, a function that computes the view, the parts
   that its stream renews, and the equivalent command. A page of the navigation is named in
   ``NAVIGATION`` too; a tab of a job has the address ``JOB/...`` and ``tab``.
3. ``templates/pages/NAME.html`` extends ``layout.html`` (a tab: ``job.html``) and includes
   ``part('NAME')``: ``templates/parts/NAME.html`` in an element with the id ``part-NAME``.
4. Its texts in both catalogues: ``nav.NAME`` or ``tab.NAME``, and all labels. Tests compare them.

What a page reads beside the observed cluster is a ``Cached`` value of ``Sources``. A script of its
own is a file in ``static``, named in ``rendering.OWN``, and loaded in the block ``head``.
"""
