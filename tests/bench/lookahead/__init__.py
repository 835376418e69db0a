"""The benchmark of look-ahead: a trainer's step with announced keys, beside caches that only react.

``python -m tests.bench.lookahead`` runs everything in one process, on one trace, and prints one
table and the goals; a JSON and the plots go into ``docs/figures/``. A **step** is a lookup, a
computation and an update. The computation is a wait that leaves the cores free, as a GPU's does.

Five **contestants** take the same steps, in blocks that alternate:

* ``lookahead``  a session; the keys of the next steps are announced
* ``lru``, ``lfu``  plain calls, the store's policies
* ``static``     the hottest rows stay; the others pass through room for one batch
* ``bound``      plain calls with a cache that holds the whole table: nothing is ever missing

Batches are unique keys: so does a trainer's feed prepare them, and no contestant is paid for it.
All rows were written before and are in storage. The storage's files are in the page cache, and its
slowness is injected: each **batch of cold rows** waits for so long before its rows can be read. A
plain call that reads its missing rows in pieces waits once: the disk has been asked for all of them
at the first. A background thread waits for each read that it makes.

Rows are dirty from the start, as they are in training: what leaves a cache is written.

* ``scale.py``       how much is measured: full and --quick
* ``trace.py``       the batches, by locality
* ``waits.py``       waits that are precise and leave the core free; files that are slow
* ``stores.py``      the written store and its copies; budgets by slots
* ``contestants.py`` what each does in a step
* ``blocks.py``      blocks of steps that alternate; medians
* ``grid.py``        locality, cache, latency, computation: all combinations
* ``sweep.py``       caches from one working set to eight, and where the knee is
* ``planner.py``     seconds of each stage for 50,000 keys
* ``report.py``      the goals and the table
* ``plots.py``       the pictures, where matplotlib is installed
"""
