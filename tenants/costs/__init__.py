"""What requests cost, in millionths of the server's currency: whole numbers, rounded once a request.

prices.py     a recipe's list prices, and what a request costs by them
device.py     how the machine's own time is shared out among those who used it
summary.py    costs by team, key, model, adapter and time; cost per accepted outcome
compare.py    what the same would have cost at a provider's prices
daily/        a team's day as JSON, CSV or a page
feedback.py   whether an answer was of use
"""
