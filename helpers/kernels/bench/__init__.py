"""`python -m helpers.kernels.bench`: are the kernels right on this GPU, and how fast are they?"""
