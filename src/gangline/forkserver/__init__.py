"""The client of a fork server: an interpreter that imports once and is forked for each start.

``client`` speaks the socket protocol that ``protocol`` describes. The server is a program of its
own, in the folder ``elastic/forkserver/hook``: it is started by its command line, never imported.
"""
