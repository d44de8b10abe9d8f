#!/usr/bin/env python3
"""Steps of an MLP and of a transformer: this project's on a GPU beside PyTorch's eager ones on the same GPU.

Usage: torch_compare.py [--program build/release/bin/centroid-bench-devices] [--matmul f32|tf32|bf16] [--steps N] [--out FILE]

It needs PyTorch with CUDA and a GPU. A step is forward, backward and SGD, 256 samples, everything on the GPU but the batch, whose numbers come
from pinned memory in both. Both are timed by the host's clock, with nothing queued before and after. The bar is 1.15 times PyTorch's time.

Exit status: 0 within the bar, 1 a step is slower, 2 wrong arguments or a program that failed, 77 no PyTorch or no GPU here.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import time

SKIPPED = 77
BAR = 1.15
SAMPLES = 256
WARM_UP = 5


def skip(why):
    print(f"torch_compare needs PyTorch with CUDA and a GPU: {why}", file=sys.stderr)
    sys.exit(SKIPPED)


def load_torch():
    try:
        import torch
    except ImportError as missing:
        skip(f"{missing}; install it with pip (torch)")
    if not torch.cuda.is_available():
        skip("this PyTorch sees no GPU (torch.cuda.is_available() is false)")
    return torch


def make_mlp(torch):
    """mlp:784-1024-1024-10,relu"""
    nn = torch.nn
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def make_transformer(torch):
    """transformer:layers=4,width=128,context=128, as docs/how-to/built-in-models.md#transformer describes it."""
    nn, functional = torch.nn, torch.nn.functional

    class Norm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = Norm(width), Norm(width)
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.o = nn.Linear(width, width, bias=False)
            self.up = nn.Linear(width, 4 * width, bias=False)
            self.down = nn.Linear(4 * width, width, bias=False)

        def forward(self, x):
            n, t, width = x.shape
            split = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(split[0], split[1], split[2], is_causal=True)
            x = x + self.o(seen.transpose(1, 2).reshape(n, t, width))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    class Transformer(nn.Module):
        def __init__(self, layers=4, width=128, heads=4, context=128, vocabulary=256):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.positions = nn.Parameter(torch.zeros(context, width))
            self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
            self.norm = Norm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)

        def forward(self, tokens):
            return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions)))

    return Transformer()


def time_torch(torch, model, inputs, labels, matmul, steps):
    """Milliseconds of a step: the best of five means."""
    torch.backends.cuda.matmul.allow_tf32 = matmul == "tf32"
    device = torch.device("cuda:0")
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = inputs.pin_memory(), labels.pin_memory()

    def step():
        x, y = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=matmul == "bf16"):
            logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.item()  # this project's step waits for its loss, too

    for _ in range(WARM_UP):
        step()
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - begin) / steps)
    return 1e3 * best


def driver_version():
    """As the driver's management library says it; None: it is not there."""
    text = ctypes.create_string_buffer(96)
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        if library.nvmlInit_v2() != 0 or library.nvmlSystemGetDriverVersion(text, len(text)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return text.value.decode(errors="replace")


def time_own(program, matmul):
    """What `centroid-bench-devices cuda:0 MATMUL --json` says: {"steps": {model: milliseconds}}."""
    try:
        run = subprocess.run([program, "cuda:0", matmul, "--json"], capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as failure:
        print(f"{program} cannot be run: {failure}; build centroid-bench-devices with CUDA, or say --program", file=sys.stderr)
        sys.exit(2)
    if run.returncode != 0:
        print(f"{program} ended with {run.returncode}: {run.stderr.strip()}", file=sys.stderr)
        sys.exit(2)
    return json.loads(run.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/bin/centroid-bench-devices")
    parser.add_argument("--matmul", default="f32", choices=["f32", "tf32", "bf16"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", help="write the results there, as JSON")
    arguments = parser.parse_args()
    torch = load_torch()
    own = time_own(arguments.program, arguments.matmul)
    torch.manual_seed(1)
    tokens = torch.randint(0, 256, (SAMPLES, 129))
    cases = {
        "mlp:784-1024-1024-10": (make_mlp(torch), torch.randn(SAMPLES, 784), torch.randint(0, 10, (SAMPLES,))),
        "transformer:layers=4,width=128,context=128": (make_transformer(torch), tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()),
    }
    results = {
        "command": ["python3", *sys.argv],
        "card": torch.cuda.get_device_name(0),
        "driver": driver_version(),
        "torch_cuda": torch.version.cuda,
        "torch": torch.__version__,
        "matmul": arguments.matmul,
        "samples": SAMPLES,
        "steps": {},
    }
    missed = False
    for name, (model, inputs, labels) in cases.items():
        torch_ms = time_torch(torch, model, inputs, labels, arguments.matmul, arguments.steps)
        ratio = own["steps"][name] / torch_ms
        missed = missed or ratio > BAR
        results["steps"][name] = {"own_ms": own["steps"][name], "torch_ms": torch_ms, "ratio": ratio}
        print(f"{name:<44} own {own['steps'][name]:8.3f} ms  torch {torch_ms:8.3f} ms  ratio {ratio:.2f} (bar {BAR}){' MISSED' if ratio > BAR else ''}")
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
