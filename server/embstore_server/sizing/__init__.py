"""Hit rates of a cache by its size, from a profile.

prediction        hit rates, working sets, and the rows that look-ahead fetches
curves            hit rates of a running store's pools at other sizes
simulate          the policies, simulated on a recorded trace
simulate_kernels  the loops of these simulations
sizes             bytes of rows and slots, and the cache sizes to predict for
"""
