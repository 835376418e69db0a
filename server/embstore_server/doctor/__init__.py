"""Checks of a machine: causes of a slow or failing server, and their remedies.

Each check looks at one thing, and returns a **finding**: ok, warn (it works, less well) or fail (a
server would not start, or would lose its store). A check reads the system's own files (/proc, /sys)
below a root, so that it can be given the files of another machine; or it tries the thing itself: a
sync of the disk, an addition of denormals, a file in memory.

    limits      limits of the process: descriptors, locked memory, address space, maps
    disk        the data directory: its file system, free space, speed
    machine     clock, processor, memory, huge pages, shared memory
    installed   versions, the extras, CuPy and the driver

Checks change nothing: the file by which the disk is measured is removed.
"""
