"""Programs around a store: the demo, profiles of training files, reports of runs, a benchmark.

demo       a DLRM trained through a server, compared bit by bit
profiling  profiles counted from training files, and drawn
report     the report of a training run, as one HTML file
commands   the command line of these programs
"""
