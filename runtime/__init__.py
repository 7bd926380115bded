"""The running server. A room for each question: how it starts and stops (`server`), how it is asked (`http`, `cli`),
what it can do (`gateway`), who waits for what (`scheduling`), which model is where (`residency`), who runs the engines
(`slots`).
"""
