"""The fleet's port: requests that other servers pass on, this node's reports, and files of its adapters.

hops.py      who passes a request on, for whom, to which weights; on the public port its header is dropped
reports.py   the stream of reports
copies.py    files of adapters
pages.py     Now and Requests of another server's console
conversations.py  conversations of routers that have their home here
app.py       the application of that port: inference, changes of names, reports and files, nothing else
fronts.py    what a front passes on, or refuses
passing.py   passes changes of names on to a node
"""
