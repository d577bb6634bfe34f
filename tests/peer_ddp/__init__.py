"""PyTorch's own tests of DistributedDataParallel, from the installed wheel, on gloo and the CPU.

The wheel carries torch/testing/_internal/distributed/distributed_test.py. `driver` runs its tests
of DistributedDataParallel with torch's class or with one put in its place, `masquerade` lets those
that ask for GPUs run on the CPU, `lists` says which of them count, and why the others do not.
"""
