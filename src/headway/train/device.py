"""Peak memory of a CUDA device by phase: allocated, reserved, and used by everything on the device."""

import torch


class CudaMeter:
    """Reads torch's CUDA counters for the recorder. `device_used` includes other processes and the CUDA context."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def reset(self) -> None:
        """Start a new peak."""
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)

    def read(self) -> dict[str, int]:
        """Peaks in bytes since `reset`; `device_used` is a reading of now."""
        torch.cuda.synchronize(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        return {
            "allocated": torch.cuda.max_memory_allocated(self.device),
            "reserved": torch.cuda.max_memory_reserved(self.device),
            "device_used": total - free,
        }
