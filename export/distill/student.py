"""From a model of the export to a student that is trained, and back."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from export.distill.decoder import MATRICES, NORMS, Decoder
from export.model import Model


def begin_as(model: Model, layers: Sequence[int], *, masks: int) -> Decoder:
    """A student that begins as some layers of a target or of an earlier draft.

    Masks that the model does not have begin anew.
    """
    student = Decoder(model, layers, masks=masks)
    known = torch.tensor(model.weights.get("masks", np.empty((0, model.geometry.hidden))))[:masks]
    with torch.no_grad():
        student.masks[: len(known)] = known
    return student


def as_model(student: Decoder, target: Model, head_tokens: Tensor) -> Model:
    """The student as a draft of `target` with a head over `head_tokens` [n] int64."""
    weights = {
        name: target.weights[name] for name in ("embedding", "head") if name in target.weights
    }
    weights["norm"] = as_array(student.norm)
    if len(student.masks):
        weights["masks"] = as_array(student.masks)
    for number, layer in enumerate(student.layers):
        for name in (*MATRICES, *NORMS):
            weights[f"layers.{number}.{name}"] = as_array(getattr(layer, name))
    geometry = replace(target.geometry, layers=len(student.layers))
    return Model(geometry, weights, head_tokens=head_tokens.cpu().numpy())


def as_array(tensor: Tensor) -> NDArray[Any]:
    """The tensor's numbers in float32."""
    return np.asarray(tensor.detach().float().cpu().numpy())
