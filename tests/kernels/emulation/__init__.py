"""A GPU of NumPy memory that runs the kernels' CUDA sources, built for the host."""
