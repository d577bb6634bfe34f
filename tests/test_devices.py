"""No tensor is made on the CPU beside a model on another device: such a mixture is an error.

The other device is "meta", which has shapes and no numbers: the nearest to a GPU that is here.
"""

import pytest
import torch
from torch import nn

from helpers import kernels, problems
from helpers.accumulate import GradientAccumulator, split_batch
from helpers.buckets import Bucket, plan_buckets
from helpers.memory import storage_bytes

IMAGES = torch.empty(8, 64, device="meta"), torch.zeros(8, dtype=torch.long, device="meta")
TOKENS = (torch.zeros(2, 16, dtype=torch.long, device="meta"),) * 2
MODELS = {
    "mlp": (problems.make_mlp, problems.classification_loss_sum, IMAGES),
    "conv": (problems.make_conv, problems.classification_loss_sum, IMAGES),
    "batch norm": (
        lambda: problems.make_conv(norm="batch"),
        problems.classification_loss_sum,
        IMAGES,
    ),
    "gpt": (problems.make_gpt, problems.token_loss_sum, TOKENS),
    "gpt, checkpoints": (
        lambda: problems.make_gpt(checkpoint=True),
        problems.token_loss_sum,
        TOKENS,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_forward_backward_accumulation_and_buckets_stay_on_the_models_device(name):
    make, loss_sum, batch = MODELS[name]
    model = make().to("meta")
    accumulator = GradientAccumulator(model.parameters())
    for part in split_batch(batch, len(batch[1]) // 2):
        loss_sum(model, part).backward()
        accumulator.add()
    accumulator.assign()
    last_first = list(model.parameters())[::-1]
    for parameters in plan_buckets(last_first, cap_bytes=10_000):
        bucket = Bucket(parameters)
        kernels.pack([p.grad for p in parameters], bucket.views, 0.5)
        assert bucket.buffer.is_meta
        assert kernels.sum_of_squares(bucket.buffer).is_meta
    assert storage_bytes(model) > 0


class Forgetful(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs) * torch.ones(self.out_features)


def test_a_tensor_made_on_the_cpu_is_found():
    model = Forgetful(64, 10).to("meta")
    with pytest.raises(RuntimeError, match="device"):
        problems.classification_loss_sum(model, IMAGES)
