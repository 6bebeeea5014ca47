"""The fork server: one interpreter of a node that imports once and is forked for each start.

``hook`` is no package: the folder is put on ``PYTHONPATH`` of the server and of workers. Its files
use the standard library only, so they run in environments where Gangline is not installed.
``gangline.forkserver`` has the client and describes the messages.
"""
