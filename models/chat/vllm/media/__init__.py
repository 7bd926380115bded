"""Images, sounds and videos of requests, between vLLM's front end and EngineCore.

decoding.py  decodes them as far as the budget of their request
reading.py   which formats are read, and the keys under which media are cached
sending.py   sends each to EngineCore once
"""
