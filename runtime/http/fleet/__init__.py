"""The fleet's port: requests that other servers pass on, and this node's reports.

hops.py      who passes a request on, for whom, to which weights; on the public port its header is dropped
reports.py   the stream of reports
app.py       the application of that port: inference and reports, nothing else
"""
