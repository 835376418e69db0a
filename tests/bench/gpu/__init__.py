"""The benchmark of a GPU: its kernels beside its memory, the store's step beside torch's.

``python -m tests.bench.gpu`` measures everything in one process and one run, prints one table and
the goals, and writes a JSON into ``docs/figures/``. Needed are CuPy, NumPy, Numba and a CUDA
device; torch is measured where it can be imported. Nothing of the device is set: clocks are as they
are.

The ceiling is a device-to-device copy of the same run, reads and writes counted. A figure's share
is its bytes over its time over the ceiling; bytes are counted as the headers of the kernels do, so
what a kernel reads twice counts once where they say that the second time it comes from a cache.

Times of the device are events in the stream of the kernels, and medians. Before each sample copies
far larger than the L2 cache empty it, and take so long that the host has given all of a sample's
work before its first kernel begins: the gaps between launches are the device's own.

``--emulated`` runs every part, tiny, where there is no GPU (tests/kernels/emulation): a proof that
it runs, no figure.

* ``scale.py``     how much is measured: full, --quick, --emulated
* ``law.py``       the keys: a Zipf law over very many ranks; a footprint of such a run
* ``machine.py``   the device that is measured, or the emulated one
* ``clock.py``     points in time of the device or of the host; what each launch takes
* ``kernels.py``   every verb of the device at the yardstick
* ``cases.py``     the verbs' calls, and the bytes that each moves
* ``stores.py``    a store on the device, called with arrays that are there
* ``step.py``      lookup and update of a resident working set; bytes beside the rows
* ``host.py``      what a call of few keys costs the host above the runtime
* ``shared.py``    a trainer's calls to a server of the same GPU
* ``tiers.py``     the cache at 0.8 of the footprint; rows from storage, and the host tier
* ``peer_torch.py`` torch on the same GPU
* ``guard.py``     the digests of CPU and device are the same
* ``report.py``    the goals and the table
"""
