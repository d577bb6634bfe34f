"""Looks at every GPU and prints what it finds as one line of JSON.

python -m helpers.doctor.gpu_child is a process of its own, which `helpers.doctor.gpus` ends after
its limit. With no GPU it says so and ends; the rest was not run on a machine with GPUs.
"""

import json
import time

import torch

SIZE, TIMES = 2048, 5  # 17 billion operations: a millisecond, and long beside a launch


def look() -> dict:
    """Return `gpus`, each as the fields of gpus.Gpu, and `trouble`. Local; raises nothing."""
    try:
        gpus = [_look_at(index) for index in range(torch.cuda.device_count())]
        return {"gpus": gpus, "trouble": ""}
    except (RuntimeError, AssertionError) as error:  # CUDA's own, out of memory among them
        return {"gpus": [], "trouble": str(error).strip().partition("\n")[0]}


def _look_at(index: int) -> dict:
    properties = torch.cuda.get_device_properties(index)
    others = (other for other in range(torch.cuda.device_count()) if other != index)
    return {
        "name": properties.name,
        "memory_gib": properties.total_memory / 2**30,
        "uuid": str(getattr(properties, "uuid", index)),
        "matmul_ms": _matmul_ms(index),
        "reaches": [o for o in others if torch.cuda.can_device_access_peer(index, o)],
    }


def _matmul_ms(index: int) -> float:
    """Milliseconds of one multiplication, the fastest of a few after a first one."""
    a = torch.ones(SIZE, SIZE, device=torch.device("cuda", index), dtype=torch.float16)
    times = []
    for _ in range(1 + TIMES):
        torch.cuda.synchronize(index)
        start_s = time.perf_counter()
        a @ a
        torch.cuda.synchronize(index)
        times.append(1e3 * (time.perf_counter() - start_s))
    return min(times[1:])


if __name__ == "__main__":
    print(json.dumps(look()))
