"""The benchmark: the store, embedded and served, beside its peers; the service beside the bare
wire; its storage beside the bare disk.

``python -m tests.bench`` measures everything whose packages are installed, prints one table and
the goals, and writes a JSON into ``docs/figures/``. Every contender lives in a process of its own,
so that no peer's thread pool, allocator or processor flags touch another's figures; the parent lets
them run in rounds, one at a time, so that a slow minute of the machine falls on all of them alike.

* ``program.py``    the command line, the parts, where results go: of every benchmark here
* ``scale.py``      how much is measured: full and --quick
* ``workload.py``   the trace: Zipf batches and gradients, from seeds
* ``worker.py``     a contender's process, and how the parent asks it
* ``rounds.py``     rounds over lanes, medians
* ``engine.py``     embstore: 100, 20 and 5 % of the rows cached; 26 tables in one call
* ``service.py``    embstore as a service: the same calls by a client of a server process
* ``serving.py``    servers of the benchmark's own, and what they count
* ``peer_*.py``     torch, FBGEMM, Redis
* ``wire.py``       calls of one key, bulk payloads: what the service adds to the wire
* ``turns.py``      what is compared, in turns
* ``bare.py``       bare gRPC: what the wire is compared with
* ``crowd.py``      many clients at once
* ``memory.py``     anonymous memory of a process that holds nothing but a store
* ``storage.py``    cold rows, write-back, checkpoint, digest
* ``space.py``      bytes written, space, stalls and opening at several sizes
* ``durability.py`` what the levels of durability cost, and how fast commands are executed again
* ``standby.py``    what standbys cost, and how far behind they are
* ``stalls.py``     calls of one key while something long runs, and SIGTERM then
* ``neighbour.py``  a quiet caller beside a greedy one (``greedy.py``)
* ``torch_adapter.py``  a step of the adapter for PyTorch beside the same calls by hand
* ``files.py``      tables as files, beside a plain copy
* ``disk.py``       page cache, plain maps and plain writes: what storage is compared with
* ``hardware.py``   what it ran on
* ``report.py``     the table, the goals, the JSON
* ``stores.py``     stores, written tables and their copies
* ``pictures.py``   matplotlib, where it is installed
"""
