"""Hit rates of a cache by its size, from a profile.

prediction        hit rates, working sets, rows that look-ahead fetches
curves            hit rates of a running store, of its pools at other sizes
simulate          the policies played on a recorded trace
simulate_kernels  the loops behind them
sizes             bytes of rows and slots, and the sizes worth a look
"""
