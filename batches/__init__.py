"""Batches: many requests in one file, answered within a day from idle capacity, across any crash.

A batch:

| state       | entered when                                      | leaves to                                       |
|-------------|---------------------------------------------------|-------------------------------------------------|
| validating  | it is created; its lines are being stored         | in_progress, failed, cancelling                 |
| failed      | its file has faults                               | -                                               |
| in_progress | all of its lines are stored                       | completed, cancelling, expired                  |
| cancelling  | its team cancels it, or its key lost its rights   | cancelled, once no line runs                    |
| completed   | its last line ended                               | -                                               |
| cancelled   | cancelled, and no line runs any more              | -                                               |
| expired     | its window ended, and no line runs any more       | -                                               |

A line:

    waiting ──(claimed under a runner's epoch)──> running ──(final answer)──> ended
       ^                                             │
       └──(try again; runner stopped or died)────────┘
    waiting ──(batch cancelled)──> cancelled        waiting ──(window over)──> expired

The counts of a batch change in the transaction that changes its lines, and so does its state when the last line ends.
A line that runs ends in one transaction with its row of the ledger (`tenants.ledger`): both, or neither.

records.py  files, batches and lines as they are stored
storage/    their tables, in the ledger's database
files.py    the table of files
table.py    the table of batches
lines.py    the table of lines: claimed, ended exactly once, read in order
runners.py  the table of runs of servers, and their epochs
store.py    the tables of a running server: writes go through the ledger's thread
content/    bytes of files
intake/     how files and batches come in: checked, stored, turned into lines
check_process.py  the process that reads what clients sent
looks.py    a task that looks for work
work/       how lines are worked off
callbacks/  what is sent to a team's servers when a batch ends
output.py   output and error files, rendered from lines
service.py  files and batches for HTTP
"""
