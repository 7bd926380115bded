"""What a client with a key, or with none on an open server, may try with what came after the engines: routers, models
that are added, organizations. What is tried with requests for answers is in tests/contract and tests/unit/guard.
"""
