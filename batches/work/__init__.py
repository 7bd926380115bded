"""The execution of lines.

policy.py   which lines run next, and how many; work that they lost to people's requests
forecast.py when batches end
forecaster.py  measures for forecasts, and stores them
ends.py     the outcome of a line's attempt
running.py  one attempt, whose end is written with its ledger row
waiting.py  how many lines wait, counted periodically
worker.py   the loop: claims lines, runs them, returns unfinished ones
"""
