"""What to do first where a GPU can be had, as one program: ``make gpu``, or

    python -m tests.gpu.plan --out FOLDER [--minutes 8] [PART ...] [--emulated]

Its parts (`parts.py`) are in an order in which the first settle most: are missing rows as fast as
the goals say, does the device do what it is taken to do, are its bits right, how fast is all else.
Each leaves ``FOLDER/PART.json`` and ``PART.log``. Called again with the same folder it goes on
(`runner.py`). Parts that are named are run, whatever is in the folder.

Beside Python 3.11 or later it needs CuPy, NumPy, Numba, grpcio, protobuf, pytest and Hypothesis;
what it is better for is used where it is there: torch, pytest-xdist, compute-sanitizer, ncu, and
for the part `served` the extra "server".

``--emulated`` runs the parts over the emulated device (tests/kernels/emulation), tiny.
"""
