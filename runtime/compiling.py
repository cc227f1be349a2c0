"""The process that has a provider compile a graph: see `runtime.providers.keeping`."""

import gc
from pathlib import Path
from typing import Any

from runtime.child import answer
from runtime.providers import Place, compile_graph


def _compile(request: dict[str, Any]) -> dict[str, Any]:
    compile_graph(
        Path(request["graph"]),
        Path(request["to"]),
        place=Place.from_data(request["place"]),
    )
    gc.collect()  # some write when their session ends
    return {}


if __name__ == "__main__":
    answer(_compile)
