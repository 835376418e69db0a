"""Checks of a machine: causes of a slow or failing server, and their remedies.

Each check examines one property, and returns a **finding**, whose status is ok, warn (a server
works, but less well) or fail (a server would not start, or would lose its store). Some checks read
the system's own files (/proc, /sys) below a root, so that a test can supply the files of another
machine. Other checks try the operation itself: they sync a file, add denormal numbers, or make a
file in memory.

    limits      limits of the process: descriptors, locked memory, address space, maps
    disk        the data directory: its file system, free space, speed
    machine     clock, processor, memory, huge pages, shared memory
    installed   versions, the extras, CuPy and the driver

Checks change nothing; the file that serves to measure the disk is removed.
"""
