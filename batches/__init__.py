"""Batches: many requests in one file, answered within a day from idle capacity, safe across crashes.

A batch:

| state       | entered when                                      | next states                                     |
|-------------|---------------------------------------------------|-------------------------------------------------|
| validating  | it is created; its lines are being stored         | in_progress, failed, cancelling                 |
| failed      | its file has faults                               | -                                               |
| in_progress | all of its lines are stored                       | completed, cancelling, expired                  |
| cancelling  | its team cancels it, or its key lost its rights   | cancelled, when no line is running              |
| completed   | its last line ended                               | -                                               |
| cancelled   | it was cancelled, and no line is running          | -                                               |
| expired     | its window ended, and no line is running          | -                                               |

A line:

    waiting ──(claimed under a runner's epoch)──> running ──(final answer)──> ended
       ^                                             │
       └──(retry; runner stopped or died)────────┘
    waiting ──(batch cancelled)──> cancelled        waiting ──(window ended)──> expired

The transaction that changes lines also changes the counts of their batch, and its state when the last line ends.
A running line ends in the same transaction as its ledger row (`tenants.ledger`).

records.py        files, batches and lines as they are stored
storage/          their tables, in the ledger's database
files.py          the table of files
table.py          the table of batches
lines.py          the table of lines: claimed, ended exactly once, read in order
runners.py        the tables of servers' runs with their epochs, and of how fast they ran lines
store.py          access to the tables; writes go through the ledger's thread
content/          bytes of files
intake/           accepts files and batches: checks and stores them, and turns files into lines
check_process.py  the process that parses what clients send
looks.py          a task that checks for work periodically
work/             runs the lines
callbacks/        notifies a team's servers when a batch ends
output.py         output and error files, rendered from lines
service.py        files and batches for HTTP
"""
