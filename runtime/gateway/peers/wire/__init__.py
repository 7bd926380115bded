"""HTTP/1.1 to other servers of the fleet for requests whose body is in memory; every token passes through here.

connection.py  one kept-alive connection, as an asyncio protocol with httptools
pool.py        idle connections, by node, and how new ones are opened

aiohttp can do the same, but took half of a front's processor time per request and 8 KiB per stream. Uploads, reports
and files still use aiohttp (`runtime.gateway.peers.connection`).
"""
