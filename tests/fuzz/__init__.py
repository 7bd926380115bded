"""A long attack on a real server while a stream must keep running: `make fuzz`.

corpus.py      requests as bytes, and the file of saved ones
mutate.py      makes one request from another, by a seed
cases.py       makes requests from the OpenAPI document
key.py         the key that requests are sent with
sending.py     sends a request over its own socket and reads the answer
verdict.py     decides which answers are findings, without I/O
reading.py     reads the control stream, in its own process
control.py     reports the gaps in that stream, with samples of how busy the machine is
gaps.py        decides which gaps the server caused, without I/O
memory.py      memory and descriptors of the server's processes over time
report.py      findings and the verdict
__main__.py    the run
test_parts.py  tests of all this

The corpus is replayed first. It grows by the requests that were answered in a new way.
"""
