"""What of a machine makes a server slow, or fails it later; and what to change.

Each check looks at one thing, and returns a **finding**: ok, warn (it works, less well) or fail (a
server would not start, or would lose its store). A check reads what the system says of itself, as
files below a root, so that it can be shown the files of another machine; or it tries the thing
itself: a sync of the disk, an addition of denormals, a file in memory.

    limits      what the process may have: descriptors, locked memory, address space, maps
    disk        the data directory: its file system, free room, how fast it is
    machine     clock, processor, memory, huge pages, shared memory
    installed   versions, the extras, CuPy and the driver

Nothing is kept, nothing is changed: the file by which the disk is measured is removed.
"""
