"""The processes that run engines, and the wire to them: frames, links, the pool of slots, the loop inside a slot.

A slot holds one engine at most and knows nothing of names, queues or HTTP. Why one died is found out in `death`.
Not here: which model a slot is for (`residency`), and the engines themselves (`models`).
"""
