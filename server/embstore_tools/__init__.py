"""Programs around a store: the demo, profiles of training files, the size of a cache, a benchmark.

demo       a DLRM trained through a server, compared bit by bit
profiling  profiles counted from training files, and drawn
sizing     hit rates by cache size, predicted from a profile
commands   the command line of these programs
"""
