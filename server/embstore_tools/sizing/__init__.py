"""Hit rates of a cache by its size, from a profile.

prediction        curves, working sets, what look-ahead fetches
simulate          the policies played on a recorded trace
simulate_kernels  the loops behind them
"""
