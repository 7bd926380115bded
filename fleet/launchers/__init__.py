"""Starting servers of a fleet and starting them again, on machines that Ray joins.

cluster.py      the file that says which server runs where
processes.py    start a process in a session of its own, find it again, end it
supervisor.py   when a server is started, adopted and started again
head.py         Ray's own processes on a machine: the head, or one that joins it
driver.py       a process of its own: gives each server an actor, which supervises it; the only module that imports Ray

A server, as its actor sees it:

| the record of its process | the process | then                                                           |
|---------------------------|-------------|----------------------------------------------------------------|
| is not there              | -           | it is started                                                  |
| is there                  | lives       | it is adopted, also by an actor that has itself been restarted |
| is there                  | has ended   | it is started again, after a pause that doubles each time      |
| is of an earlier boot     | -           | it is started                                                  |

Ray starts and restarts servers and knows nothing of models. No request passes through it, no server imports it, and its
variables never reach one. If Ray dies, the servers go on.
"""
