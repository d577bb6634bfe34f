"""The Triton kernels themselves. To import a module of this folder takes triton, but no GPU."""
