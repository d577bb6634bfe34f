"""What to do, by the name of the trouble. Each is given for a fault that a test injects.

Sources: NCCL's "Troubleshooting" and "Environment Variables"; torchrun's and gloo's variables in
torch.distributed's manual page; docker run's --shm-size, --ulimit, --cpus and --memory.
"""

ADVICE = {
    # the machine
    "windows": "Use WSL 2: several ranks need Linux (or macOS).",
    "old_python": "Make .venv with Python 3.11 or newer: make book PYTHON=python3.12",
    "one_core": "Everything runs, but ranks take turns: believe the counts, not the seconds.",
    "core_quota": "The container may use less than it sees. Start it with a larger --cpus, or set"
    " OMP_NUM_THREADS to what it may use, divided by the ranks.",
    "omp_no_number": "Unset OMP_NUM_THREADS, or make it a number: the launcher refuses it as is.",
    "omp_too_many": "Unset OMP_NUM_THREADS: the launcher then gives each rank cores // ranks."
    " torchrun gives 1. More threads than cores wait for each other.",
    "torchrun_variables": "Unset these: a script started without torchrun would take itself for"
    " one rank of a larger job, and wait for the others or stop.",
    "few_files": "Raise it with ulimit -n 1024 (a container: --ulimit nofile=1024): connections of"
    " ranks are open files too, and fail with 'Too many open files'.",
    "within_torchrun": "Start the doctor once, without torchrun: it starts its ranks itself.",
    # memory
    "little_memory": "Close what you can: a rank takes some 0.3 GB, and chapters start up to four."
    " A rank that ends with SIGKILL has met the system's memory killer.",
    "memory_limit": "The container's limit is what counts: start it with a larger --memory.",
    "shm": "Start the container with --shm-size=1g or --ipc=host: workers of a DataLoader and NCCL"
    " hand over data in /dev/shm, and end with a bus error where it is full.",
    "memlock": "Start the container with --ulimit memlock=-1 (on a host: limits.conf): NCCL and"
    " InfiniBand lock memory in place, and fail with 'unhandled system error'.",
    "shm_closed": "Mount /dev/shm anew for writing by all (mode 1777): the launcher's locks and the"
    " workers of a DataLoader live there.",
    "no_temporary": "Set TMPDIR to a folder that can be written to and has some MB free: each"
    " launch keeps what its ranks print there.",
    # network
    "host_name": "Book and launcher do without the name, but torchrun --standalone waits for it:"
    " add the name to /etc/hosts after 127.0.0.1, or start with"
    " torchrun --master-addr 127.0.0.1 --master-port 29500.",
    "loopback": "Bring it up (ip link set lo up), with 127.0.0.1: all ranks of one host meet there."
    " A container without it was started with --network none, or a sandbox forbids sockets.",
    "gloo_interface": "Unset GLOO_SOCKET_IFNAME, or set it to an interface that exists here"
    " (lo for one host): gloo cannot connect over this one.",
    "nccl_interface": "Unset NCCL_SOCKET_IFNAME, or name the start of an interface's name; =eth0"
    " means that one, ^docker,lo all but those.",
    "port": "Another job holds the port, perhaps one that was left: end it, or start with"
    " torchrun --standalone, which takes a free one, or --master-port with another number.",
    "port_denied": "Take one from 1024 on, with torchrun --master-port: the system keeps those"
    " below for its own services.",
    "no_port": "End what holds so many connections, or widen the system's range of ports to give"
    " (Linux: sysctl net.ipv4.ip_local_port_range).",
    # torch and drivers
    "no_torch": "Run this with the book's Python (.venv/bin/python), or say make book first.",
    "torch_version": "The book is tested with the version in requirements.txt: say make book.",
    "no_distributed": "This torch was built without torch.distributed or gloo: install the wheel"
    " that the selector on pytorch.org names.",
    "no_nccl": "This torch was built without NCCL, so GPUs cannot sum: install a CUDA (or ROCm)"
    " wheel for Linux.",
    "cpu_build": "All chapters work as they are, on the CPU. To use the GPUs, install the build"
    " named above: see 'Which PyTorch' in README.md.",
    "driver_old": "Renew the driver, or install the torch build named above: a driver runs no CUDA"
    " of a later major version.",
    "driver_silent": "Reboot, or install the driver again: kernel module and nvidia-smi may be of"
    " two versions. In a container: start it with --gpus all.",
    # GPUs
    "gpus_silent": "A GPU does not answer, or another job fills it: look at nvidia-smi, end the"
    " job, reset or reboot. CUDA_VISIBLE_DEVICES can leave one GPU out.",
    "gpus_hidden": "torch sees fewer GPUs than the driver: unset CUDA_VISIBLE_DEVICES, or count"
    " ranks by what it leaves; in a container pass --gpus all.",
    "duplicate_gpu": "More ranks than GPUs: NCCL would stop with 'Duplicate GPU detected'. Start"
    " one rank a GPU and call torch.cuda.set_device(LOCAL_RANK) before the first collective; the"
    " book's process_group() uses gloo on the CPU for such a number.",
    "visible_twice": "CUDA_VISIBLE_DEVICES names a GPU twice: name each once, or unset it.",
    "slow_gpu": "All ranks wait for the slowest GPU: look for another job, heat or a lower power"
    " limit with nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE.",
    "no_p2p": "GPUs cannot read each other's memory, as is usual for consumer cards and virtual"
    " machines: NCCL goes through the host, slower but right. If it hangs: NCCL_P2P_DISABLE=1.",
    "iommu": "The IOMMU may lead messages between GPUs astray: if they hang or differ, switch it"
    " off in the BIOS or boot with iommu=pt, and switch ACS off on the PCI bridges;"
    " NCCL_P2P_DISABLE=1 avoids it, slower but right.",
    # the all-reduce
    "nccl_debug": "Run this again with NCCL_DEBUG=INFO and read what NCCL says last.",
    "p2p_off": "Try NCCL_P2P_DISABLE=1: where it helps, P2P is broken by the IOMMU, by ACS or by"
    " the driver (boot with iommu=pt, switch ACS off, renew the driver).",
    "nccl_interfaces": "Try NCCL_SOCKET_IFNAME=lo: NCCL may have taken an interface that leads"
    " nowhere (docker0, a VPN).",
    "gloo_interfaces": "Unset GLOO_SOCKET_IFNAME, or set it to lo (macOS: lo0), and let the"
    " firewall pass loopback: ranks may be talking over an interface that leads nowhere.",
    "busy": "The machine may be busy, or memory be swapped: look at top, and try again.",
    "wrong_sum": "Sums are wrong: trust nothing that this backend gives. Try NCCL_P2P_DISABLE=1"
    " (NCCL), another torch, and a test of the memory.",
    "all_reduce_failed": "This is what the first rank, or the launcher, said; other rows here may"
    " say why. For NCCL run it again with NCCL_DEBUG=INFO.",
    # the doctor itself
    "no_answer": "The doctor went on without it. A driver, a file system on a network or a"
    " resolver hangs: try the same by hand (nvidia-smi, df, getent hosts).",
    "check_failed": "The doctor met something that it does not know and went on; the message is"
    " above.",
    "no_threads": "This user, or the container, has as many processes and threads as it may: end"
    " some, raise ulimit -u, or start the container with a larger --pids-limit.",
    "no_book": "Run this in the book's cloned folder, with its .venv: chapters were not found.",
}
