"""Ray Train on Hawser: python train.py [--off]. The variable goes to the workers, not to the driver."""

import sys

import ray
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

LIBRARY = "/opt/hawser/lib/libnccl.so.2"


def train():
    device = ray.train.torch.get_device()
    x = torch.ones(1000, device=device)
    torch.distributed.all_reduce(x)
    with open("/proc/self/maps") as maps:
        files = sorted({line.split()[-1] for line in maps if "/libnccl.so" in line})
    print(f"rank {torch.distributed.get_rank()}: the sum is {x[0].item()}, by {files}")


def main():
    variables = {"NCCL_DEBUG": "WARN", "HAWSER_OP_TIMEOUT": "600"}
    if "--off" not in sys.argv:
        variables["LD_PRELOAD"] = LIBRARY
    ray.init(runtime_env={"env_vars": variables})
    TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2, use_gpu=True)).fit()


if __name__ == "__main__":
    main()
