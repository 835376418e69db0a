"""Devices: memory and batched kernels behind one protocol (`base.py`). `cpu.py` uses Numba."""
