"""Images, sounds and videos of requests, between vLLM's front end and EngineCore.

reading.py  which formats are read, and the keys under which media are cached
sending.py  sends each to EngineCore once
"""
