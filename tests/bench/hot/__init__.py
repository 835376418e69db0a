"""The benchmark of frequencies: a DLRM trained under each policy, on one trace, beside a cache that
holds every row.

``python -m tests.bench.hot`` runs everything in one process and prints one table and the goals; a
JSON and a picture go into ``docs/figures/``. The **trace** has the shape of Criteo Kaggle: 26
tables of the true numbers of rows, Zipf 1.05 in each column, labels of the demo's planted model.
Every row is on the storage before, in the base, whose files are in the page cache. The cache holds
1.5 % of the rows.

All **contestants** begin with the same rows and take the same batches, in blocks that alternate:

* ``all-cached``   LRU, with room for every row, and all of them there: the bound
* ``lru``, ``lfu``  from an empty cache
* ``rank``         70 % of the slots warm, by a profile of the whole trace
* ``rank-sampled`` the same by a profile of 5 % of its samples
* ``ahead-lru``, ``ahead-rank``  a look-ahead session over each
* ``hot-50``, ``hot-100``  hot/cold training over LRU, at two rates; the hot set takes 1.5 % of the
  bytes at the trainer, beside the cache of 1.5 % at the store

**Hits** are those of the training lookups alone, from the first batch on; so a row that no warm-up
brought is missed once, however short the trace is. The **offline** rate is what a cache of as many
slots reaches which holds the most accessed rows of this very trace from the beginning. Over so
short a trace these are partly rows that are accessed once, which nobody can know before; a longer
trace would be kinder to all.

* ``scale.py``       how much is measured: full and --quick
* ``trace.py``       samples, batches, what the trace counts, the offline rate
* ``stores.py``      the written store and its copies
* ``trainer.py``     the model of one contestant, and what its loop took
* ``contestants.py`` who takes part, and how each comes to its rows
* ``blocks.py``      blocks of steps that alternate; medians
* ``training.py``    what is counted before, all blocks, and every contestant's figures
* ``costs.py``       counting, classifying, packing, warming, a sampled profile: what they cost
* ``report.py``      the goals and the table
* ``plots.py``       the picture, where matplotlib is installed
"""
