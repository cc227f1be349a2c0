"""Distillation: from a target to a draft that agrees with it; the only home of training."""
