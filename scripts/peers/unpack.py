"""Write a GGUF file's weights as the float32 folder that onnxruntime-genai's builder reads.

    unpack.py MODEL.gguf FOLDER

The builder itself takes float16 and float32 GGUF files only. transformers unpacks the others, but
refuses to save a model that came from one; a plain model with the same weights it does save.
"""

import sys
from pathlib import Path


def unpack(source: Path, folder: Path) -> None:
    """Write config, float32 weights and tokenizer of `source` to `folder`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    packed = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    plain = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(**place), dtype=torch.float32
    )
    plain.load_state_dict(packed.state_dict(), strict=True)
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**place).save_pretrained(folder)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
