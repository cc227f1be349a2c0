"""Write tests/golden/sampling.npz: filtered probabilities by Hugging Face's logits processors.

Needs torch and transformers, which the project does not: run it in an environment of its own.

    python scripts/make_golden_sampling.py tests/golden/sampling.npz
"""

import sys
from pathlib import Path

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from transformers import (  # type: ignore[import-not-found, unused-ignore]
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

Case = tuple[str, list[int], dict[str, float]]
NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


def processors(settings: dict[str, float]) -> LogitsProcessorList:
    """List the processors in the order in which `generate` runs them, leaving out what is off."""
    steps = LogitsProcessorList()
    if settings["repetition_penalty"] != 1:
        steps.append(RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]))
    if settings["temperature"] != 1:
        steps.append(TemperatureLogitsWarper(settings["temperature"]))
    if settings["top_k"] != 0:
        steps.append(TopKLogitsWarper(int(settings["top_k"])))
    if settings["top_p"] != 1:
        steps.append(TopPLogitsWarper(settings["top_p"]))
    if settings["min_p"] != 0:
        steps.append(MinPLogitsWarper(settings["min_p"]))
    return steps


def logits() -> dict[str, np.ndarray]:
    """Make the logits that the cases share.

    Those named for ties have 16 values or fewer: beyond that torch's sort orders equals at will.
    """
    draw = np.random.default_rng(20240817)
    small = draw.standard_normal(60) * 3
    return {
        "small": small.astype(np.float32),
        "large": (draw.standard_normal(6000) * 3).astype(np.float32),
        "ties": np.round(small[:16]).astype(np.float32),
        "level": np.zeros(8, dtype=np.float32),
        "two": np.array([0, 0, -np.inf, -np.inf], dtype=np.float32),
    }


def cases() -> dict[str, Case]:
    """Name logits, context and settings, each case for one filter, border or combination."""
    small = logits()["small"]
    seen = [3, 5, 3, 3, 59, 0, 5, int(small.argmin()), int(small.argmax())]
    every = {"temperature": 0.8, "top_k": 30, "top_p": 0.95, "min_p": 0.02,
             "repetition_penalty": 1.2}  # fmt: skip
    return {
        "plain": ("small", [], {}),
        "cold": ("small", [], {"temperature": 0.3}),
        "hot": ("small", [], {"temperature": 1.7}),
        "penalty": ("small", seen, {"repetition_penalty": 1.3}),
        "reward": ("small", seen, {"repetition_penalty": 0.7}),
        "outside": ("small", [2, 60, 999], {"repetition_penalty": 1.5}),
        "top_k": ("small", [], {"top_k": 7}),
        "top_k_one": ("small", [], {"top_k": 1}),
        "top_k_ties": ("ties", [], {"top_k": 4}),
        "top_k_all": ("small", [], {"top_k": 60}),
        "top_k_more": ("small", [], {"top_k": 1000}),
        "top_p": ("small", [], {"top_p": 0.9}),
        "top_p_tiny": ("small", [], {"top_p": 1e-6}),
        "top_p_border": ("level", [], {"top_p": 0.5}),
        "top_p_above_border": ("level", [], {"top_p": 0.53125}),
        "top_p_ties": ("ties", [], {"top_p": 0.8}),
        "top_p_half": ("two", [], {"top_p": 0.5}),
        "min_p": ("small", [], {"min_p": 0.05}),
        "min_p_one": ("ties", [], {"min_p": 1.0}),
        "min_p_hot": ("small", [], {"min_p": 0.3, "temperature": 2.5}),
        "every": ("small", seen, every),
        "every_ties": ("ties", [3, 5, 3, 15], every | {"top_k": 9}),
        "top_k_then_p": ("small", [], {"top_k": 5, "top_p": 0.7}),
        "large_top_k": ("large", [], {"top_k": 40, "temperature": 1.2}),
        "large_top_p": ("large", [], {"top_p": 0.9, "temperature": 0.7}),
        "large_top_p_hot": ("large", [], {"top_p": 0.9, "temperature": 2.0}),
        "large_min_p": ("large", [], {"min_p": 0.1}),
        "large_every": ("large", seen, every | {"top_k": 200, "top_p": 0.8, "temperature": 1.5}),
    }


def main() -> None:
    """Run every case and write the file named on the command line."""
    values = logits()
    arrays = {f"logits/{name}": array for name, array in values.items()}
    for name, (source, context, changes) in cases().items():
        settings = OFF | changes
        ids = torch.tensor([context], dtype=torch.long)
        scores = torch.from_numpy(values[source].copy())[None]
        law = torch.softmax(processors(settings)(ids, scores), dim=-1)[0].numpy()
        kept = np.flatnonzero(law)
        arrays |= {
            f"{name}/source": np.array(source),
            f"{name}/context": np.array(context, dtype=np.int64),
            f"{name}/settings": np.array([settings[key] for key in NAMES]),
            f"{name}/kept": kept.astype(np.int16),
            f"{name}/law": law[kept],
        }
    np.savez_compressed(Path(sys.argv[1]), allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
