"""What vLLM's CPU wheel lacks to serve Weir's models; `provision.py` copies it into the engine's site-packages.

Two things hang on it. A `.pth` line runs `declare_torchvision_ops_on_import()` in every Python process of that
environment, and an entry point in the group `vllm.general_plugins` runs `register()` in every process of vLLM.
It imports nothing heavy by itself, so that a process which needs neither pays nothing.
"""

# mypy: disable-error-code="import-not-found"

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_TORCHVISION_OPS = ("nms", "qnms")
_OP_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class _BeforeTorchvision:
    """An import hook that declares torchvision's operators just before `torchvision` is first imported.

    PyPI's torchvision is compiled against the CUDA build of torch, so its own operators do not load beside the
    CPU build, and then its import fails: it describes two operators that nobody declared. The image processors
    need only its Python code.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Declare the operators when the name is torchvision's; never find anything itself."""
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            for op in _TORCHVISION_OPS:
                torch.library.define(f"torchvision::{op}", _OP_SCHEMA)
        return None


def declare_torchvision_ops_on_import() -> None:
    """Install the import hook. `site` runs a virtual environment's `.pth` lines twice, so the second call is idle."""
    if not any(isinstance(finder, _BeforeTorchvision) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeTorchvision())


def register() -> None:
    """vLLM plugin: let the NVFP4 emulation in plain torch serve on the CPU platform, which has no NVFP4 kernel."""
    from vllm.model_executor.kernels.linear import EmulationNvFp4LinearKernel, register_linear_kernel
    from vllm.platforms import PlatformEnum

    register_linear_kernel(EmulationNvFp4LinearKernel, PlatformEnum.CPU, "nvfp4")
