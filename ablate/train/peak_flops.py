"""What a device can do at most, from its maker's data sheet: the denominator of MFU."""

from __future__ import annotations

import torch

__all__ = ["peak_flops"]

PEAKS: dict[str, tuple[float | None, float | None, float]] = {
    "B200": (2250e12, 2250e12, 75e12),
    "GH200": (989e12, 989e12, 67e12),
    "H200": (989e12, 989e12, 67e12),
    "H100 PCIe": (756e12, 756e12, 51e12),
    "H100": (989e12, 989e12, 67e12),
    "A100": (312e12, 312e12, 19.5e12),
    "A10G": (70e12, 70e12, 31.2e12),
    "A10": (125e12, 125e12, 31.2e12),
    "A40": (149.7e12, 149.7e12, 37.4e12),
    "A6000": (154.8e12, 154.8e12, 38.7e12),
    "L40S": (362e12, 362e12, 91.6e12),
    "L4": (121e12, 121e12, 30.3e12),
    "V100": (None, 125e12, 15.7e12),
    "T4": (None, 65e12, 8.1e12),
    "RTX 4090": (165.2e12, 165.2e12, 82.6e12),
    "RTX 3090": (71e12, 71e12, 35.6e12),
}
"""Part of the name -> dense FLOP/s with products in bfloat16, float16 and float32 (not TF32), sums
in float32. None: the type has no units of its own. The first name that fits counts."""

LOW = {"bf16": 0, "pure_bf16": 0, "fp16": 1, "fp16_protected": 1}


def peak_flops(device: torch.device, precision: str, name: str | None = None) -> float | None:
    """FLOP/s of one device in the products of `precision`; None where nobody knows, as of a CPU.

    Args:
        device: where the trial trains.
        precision: the name of the configuration's.
        name: of the device; None: as torch says.
    """
    if device.type != "cuda":
        return None
    name = name or torch.cuda.get_device_name(device)
    words = f" {name.replace('-', ' ')} "
    for part, peaks in PEAKS.items():
        if f" {part} " in words or (part == "H100 PCIe" and "H100" in name and "PCIe" in name):
            return peaks[LOW[precision]] if precision in LOW else peaks[2]
    return None
