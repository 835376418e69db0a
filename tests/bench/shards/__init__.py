"""What shards cost: calls and bytes of a step by their number, the router's own time, a step
through the router beside one without it, and growth.

``python -m tests.bench.shards``. Calls and bytes are counted by the servers, and are the same on
any machine; times are ratios, of what takes turns in one run.

* ``clusters.py``  servers of a cluster, and what they count
* ``counts.py``    calls and bytes of a step, by plain calls and by a session
* ``router.py``    the router's own time: its shards answer at once
* ``steps.py``     a step through the router beside one without it, on the same servers
* ``growth.py``    rows that move to another shard while a client writes
* ``scale.py``     how much is measured
* ``report.py``    the table, the goals
"""
