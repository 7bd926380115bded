"""Several servers as one: choose nodes for requests, place models, and share limits.

A **node** is a whole server with its own queue, residency and slots. A **front** is a server that passes requests on to
nodes. They share no state but PostgreSQL; nodes send load reports directly to fronts.

A node, as a front sees it:

| state    | entered when                                                     | its requests      | leaves to      |
|----------|------------------------------------------------------------------|-------------------|----------------|
| up       | its newest report is at most REPORT_SECONDS old                  | new and running   | all others     |
| late     | some of its last answers began late: `fleet.lateness`            | running ones, and | all others     |
|          |                                                                  | a probe           |                |
| draining | its report says so                                               | running ones only | all others     |
| silent   | no report for REPORT_SECONDS, but its lease in the database runs | running ones      | all others     |
|          |                                                                  | while one of them |                |
|          |                                                                  | gets tokens       |                |
| gone     | its lease has expired, or the node released it                   | none              | up, a new boot |

A node starts with a **boot** number above all of its earlier ones, and numbers its reports. A report with a lower boot
or number than an earlier one is ignored. Reports contain durations but no times of day, so clocks need not agree.

An **epoch** numbers the versions of the desired replicas, a row that is written by compare-and-set:

| the row holds | a placer that knows epoch n writes n + 1 | a node that follows epoch n            |
|---------------|------------------------------------------|----------------------------------------|
| n             | the row then holds n + 1                 | keeps its list                         |
| more than n   | nothing is written, and it stops placing | follows the newer list                 |
| less than n   | nothing is written, and it stops placing | refuses the list, and reports that the |
|               |                                          | database is in an older state          |

A **block** is the part of a limit that one server may use in one window:

    none ──(one statement takes least(block, capacity - granted))──> taken ──(requests reserve from it)──> empty
      ^                                                                │                                     │
      └────────(idle for IDLE_SECONDS: the rest is given back)─────────┴─────────(the next block)────────────┘

The sum of blocks never exceeds the limit's capacity. A killed server's block stays granted until its window ends.
The unspent part of a budget is given back when it restarts, because only the journal in its data directory has all its
spending. Others cannot distinguish a dead server from one that is cut off from the database and still spends.
Limits on requests at once have no windows; see `at_once.py`.

reports.py        load reports of nodes
table.py          the newest report of each node
lateness.py       nodes whose answers begin late
index.py          nodes by model and adapter
choose.py         choice of nodes for a request
place.py          placement of models on nodes
demand.py         work of each model
epochs.py         who may write the desired replicas
blocks.py         sizes of blocks, and a server's block
grants.py         blocks in the database
certificates.py   makes certificates
tls.py            connections with certificates
signatures.py     signed requests instead, on a closed network
at_once.py        a server's share of requests at once
shared_limits.py  limits of a server in a fleet, based on blocks
membership/       the servers of a fleet and their tables in the database
simulation/       a fleet on a virtual clock, with these policies
launchers/        starts and restarts servers on machines that Ray joins

Nothing of the server is imported here: `runtime` sends reports, passes requests on and loads models.
"""
