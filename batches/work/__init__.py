"""The work on lines.

policy.py   which lines run next, and how many
forecast.py when batches end
forecaster.py  measures for forecasts, and stores them
ends.py     what a line becomes at the end of an attempt
running.py  one attempt, written with the end of its row in the ledger
waiting.py  how many lines wait, counted now and then
lost.py     work that lines lost to people's requests
worker.py   the loop: claims, runs, returns
"""
