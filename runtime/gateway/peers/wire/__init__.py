"""HTTP/1.1 to other servers of the fleet for requests whose body is in memory: the way of each token.

connection.py  one kept-alive connection, as an asyncio protocol with httptools
pool.py        idle connections, by node, and how new ones are opened

aiohttp does the same, and more; its objects and calls took a front half of its time for a request and 8 KiB of each
stream. Uploads, reports and files go on through aiohttp (`runtime.gateway.peers.connection`).
"""
