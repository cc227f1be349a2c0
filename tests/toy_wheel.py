"""A Python wheel that holds a model file, for a folder where pip looks without a network."""

import zipfile
from pathlib import Path

MEMBER = "mirror_sd_toy/toy.gguf"


def write_wheel(folder: Path, model_file: bytes) -> Path:
    """Write the wheel mirror-sd-toy 1.0 into `folder`, and return its path."""
    wheel = folder / "mirror_sd_toy-1.0-py3-none-any.whl"
    info = "mirror_sd_toy-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, model_file)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: mirror-sd-toy\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel
