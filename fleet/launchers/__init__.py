"""Start and restart the servers of a fleet, on machines that Ray joins.

cluster.py      the file that says which server runs where
processes.py    starts a process in its own session, finds it again, ends it
supervisor.py   decides when a server is started, adopted or restarted
head.py         Ray's own processes on a machine: the head, or one that joins it
driver.py       a process that gives each server a supervising actor; the only module that imports Ray

A server, as seen by its actor:

| record of its process   | the process | action                                                |
|-------------------------|-------------|-------------------------------------------------------|
| missing                 | -           | it is started                                         |
| exists                  | lives       | it is adopted, also by a restarted actor              |
| exists                  | has ended   | it is restarted, after a pause that doubles each time |
| is from an earlier boot | -           | it is started                                         |

Ray starts and restarts servers but knows nothing about models. Requests do not pass through it, servers do not import
it, and its variables do not reach them. If Ray dies, the servers keep running.
"""
