"""Which of torch's tests ours must pass: those that torch's class passes, less the exceptions."""

from pathlib import Path

ACCEPTED = Path(__file__).with_name("accepted.txt")

#: Tests that torch's class passes and that are not about what a user of the class can see.
EXCEPTIONS = {
    "test_ddp_build_debug_param_to_name_mapping": "calls two private methods that exist to label "
    "the parameters of the C++ reducer in its debug output",
    "test_ddp_build_debug_param_to_name_mapping_requires_grad": "as the one above",
    "test_ddp_logging_data_cpu": "asks the C++ logger for some forty fields and times",
    "test_ddp_native_mixed_precision_ignored_params": "private mixed precision (fields of C++ "
    "side's copies of the parameters); ours refuses the argument, torch.autocast works",
    "test_detect_ddp_is_actually_static": "asks a private method of the C++ reducer for a guess",
}

_COMPILES = {"test_ddp_compile_static_graph": "compiles C++ for about 15 s, and needs a compiler"}
#: World size -> tests that must pass too, but run only when the record is made.
RECORDED_ONLY = {
    world_size: _COMPILES | {"test_ddp_uneven_inputs": "hundreds of cases: half a minute and more"}
    for world_size in (2, 3)
}


def accepted(world_size: int) -> list[str]:
    """Names of the tests that must pass each time, from accepted.txt (a name a line)."""
    names = ACCEPTED.read_text().split()
    return [name for name in names if name not in RECORDED_ONLY.get(world_size, ())]
