"""The flags of `python -m export compile`."""

import argparse
from pathlib import Path

from runtime.device_flags import Pairs, pair
from runtime.manifest import RoleName

ROLES: tuple[RoleName, ...] = ("target", "draft")
EPILOG = """\
What is compiled is put where a session looks for it: copy FOLDER to the device, as the folder
"compiled" in its cache folder, and name the chip there as it was named here:

  mirror-chat -m BUNDLE --draft-device NPU --draft-provider-option soc_model=SM8650

Bundle, onnxruntime and provider must be the same on both, in the same versions; what does not
agree is compiled on the device, and it says so.

A bundle must have graphs that the NPU takes; usual ones have none.

examples:
  mirror-export recipe smollm2-135m --graphs target/usual,draft/npu-int8 --out bundles/model
  mirror-export compile bundles/model --role draft --chip 57 --chip 69 --out compiled
  mirror-export compile bundles/model --role draft --graph npu-int8 --chip SM8750
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What a compiling may be told."""
    add = parser.add_argument
    add(
        "bundle",
        metavar="BUNDLE",
        help="its folder; or a recipe's name or a GGUF file that the chat has built a bundle of",
    )
    add(
        "--chip",
        dest="chips",
        metavar="CHIP",
        action="append",
        required=True,
        help="the number or the name of one, as in 57 or SM8650; repeatable",
    )
    add(
        "--role",
        dest="roles",
        choices=ROLES,
        action="append",
        help="whose graphs; repeatable (default: of both models)",
    )
    add(
        "--graph",
        metavar="GRAPH",
        help="which of them, as in npu-int8 (default: the one a session would take)",
    )
    add(
        "--provider-option",
        dest="options",
        action=Pairs,
        type=pair("KEY=VALUE"),
        metavar="KEY=VALUE",
        help="as it will be given on the device; repeatable",
    )
    add(
        "--out",
        metavar="FOLDER",
        type=Path,
        help="where to (default: this machine's own cache)",
    )
