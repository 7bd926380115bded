"""A long attack on a real server, beside a stream that must go on: `make fuzz`.

corpus.py      requests as bytes, and those that are kept
mutate.py      one request made from another, by a seed
sending.py     a request over a socket of its own; what came back
verdict.py     which answers are findings: a policy without I/O
reading.py     the stream that must go on, in a process of its own
control.py     its gaps, beside samples of how busy the machine is
gaps.py        which of its gaps are ours: a policy without I/O
memory.py      memory and descriptors of the server's processes over time
report.py      what was found, and the verdict
__main__.py    the run

The corpus is replayed first and grows: what was answered in a way that was not seen before is kept.
"""
