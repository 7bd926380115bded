"""Several servers as one: which node answers a request, which node holds which model, and how limits are shared.

A **node** is a whole server with its own queue, residency and slots. A **front** is a server that passes requests on to
nodes. PostgreSQL is the only state that they share; load reports go from nodes to fronts directly.

A node, as a front sees it:

| state    | entered when                                                       | its requests      | leaves to      |
|----------|--------------------------------------------------------------------|-------------------|----------------|
| up       | its newest report is at most REPORT_SECONDS old                    | new and running   | all others     |
| late     | of its last answers some began late: `fleet.lateness`              | running ones, and | all others     |
|          |                                                                    | a probe           |                |
| draining | its report says so                                                 | running ones only | all others     |
| silent   | no report for REPORT_SECONDS, while its lease in the database runs | none from here    | all others     |
| gone     | its lease is over, or the node gave it up                          | none              | up, a new boot |

A node starts with a **boot** number above all of its earlier ones, and numbers its reports. A report with a lower boot
or number than one before is ignored. Reports hold durations and never times of day, so clocks need not agree.

An **epoch** of the desired replicas, a row that is compared and set:

| the row holds       | a placer that knows epoch n writes n + 1 | a node that follows epoch n                |
|---------------------|------------------------------------------|--------------------------------------------|
| n                   | the row holds n + 1                      | goes on                                    |
| more than n         | nothing is written, and it stops placing | takes the newer list                       |
| less than n         | nothing is written, and it stops placing | refuses the list, and reports it: the      |
|                     |                                          | database is at an older state              |

A **block**, the part of a limit that one server may use in one window:

    none ──(one statement takes least(block, capacity - granted))──> taken ──(requests reserve from it)──> empty
      ^                                                                │                                     │
      └────────(idle for IDLE_SECONDS: what is left goes back)─────────┴─────────(the next block)────────────┘

The sum of blocks never exceeds the limit's capacity. A killed server's block stays granted until its window ends.
What it had not spent of a budget goes back when it starts again: only its journal, in its data directory, has all that
it spent. Others cannot tell a dead server from one that is cut off from the database and still spends.
Requests at once have no windows: see `at_once.py`.

reports.py    what a node reports
table.py      the newest report of each node
lateness.py   nodes whose answers begin late
index.py      nodes by what they serve
choose.py     which nodes get a request
place.py      which nodes hold which models
demand.py     how much work each model has
epochs.py     who may write the desired replicas
blocks.py     how much of a limit a server takes at once, and what it has
grants.py     the blocks in the database
certificates.py   makes certificates
tls.py        connections with them
signatures.py     signed requests on a closed network instead
at_once.py    a server's share of requests at once
shared_limits.py  the limits of a server in a fleet, which uses its blocks
simulation/   a fleet on a virtual clock, with these policies
launchers/    starts servers on machines that Ray joins, and starts them again

It imports nothing of the server: `runtime` sends reports, passes requests on and loads models.
"""
