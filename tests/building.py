"""The build command on the random model: its steps, and a way to stop it at any of them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEPS = [
    "read tiny.gguf: 2 layers",
    "rebuild the tokenizer: 271 tokens",
    "write target/fp32: ",
    "write target/int8: ",
    "write draft/int4: ",
    "write a text to measure on: ",
    "compute its logits in numpy: ",
    "measure the target's fused-fp32 graph: ",
    "measure the target's fused-int8 graph: ",
    "measure the target's portable-fp32 graph: ",
    "measure the target's portable-int8 graph: ",
    "measure the draft's fused-int4 graph: ",
    "put the bundle together: ",
]


def names(folder: Path) -> list[str]:
    """What a folder holds, hidden things too."""
    return sorted(path.name for path in folder.iterdir())


def stop_after(tiny_gguf: Path, out: Path, step: str, number: int) -> tuple[int, str]:
    """Build until `step` is done, then send the signal; the exit code and what was said after."""
    code = (
        "import sys, time; from export import command\n"
        "say = command._say\n"
        "def stop(line):\n"
        "    say(line)\n"
        "    time.sleep(60 if line.startswith(sys.argv[1]) else 0)\n"
        "command._say = stop\n"
        "sys.exit(command.main(sys.argv[2:]))\n"
    )
    command = [sys.executable, "-c", code, step, "gguf", str(tiny_gguf), "--out", str(out)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith(step) for line in process.stderr)
        process.send_signal(number)
        return process.wait(60), process.stderr.read()
