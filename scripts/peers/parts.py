"""The throw-away environments, exports and bundle of a comparison, kept in a work folder."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ONNXRUNTIME = "onnxruntime==1.32.0"
GENAI = (
    "onnxruntime-genai==0.18.0",
    ONNXRUNTIME,
    "torch==2.13.0",
    "transformers==5.24.0",
    "accelerate==1.15.0",
    "gguf==0.19.0",
    "onnx==1.23.2",
    "onnx-ir==1.1.0",
)
FETCH = """
import sys
from pathlib import Path
from export import recipe
from runtime.locate import recipe_folder
found = recipe.find(sys.argv[1], recipe_folder())
recipe.fetch(found, Path(sys.argv[2]), offline=False, progress=print)
"""
GENAI_PRECISIONS = ("int8", "int4", "fp32")


class Parts:
    """Makes each part once; a part that was cut short, or whose inputs changed, is made again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)

    def mirror_python(self) -> Path:
        """The interpreter of an environment with this project, editable, on the CPU."""
        requirements = ["--editable", f"{ROOT}[cpu,chat,build]", ONNXRUNTIME]
        return self._environment("mirror-env", requirements, (ROOT / "pyproject.toml").read_bytes())

    def genai_python(self) -> Path:
        """The interpreter of an environment with onnxruntime-genai and what its builder needs."""
        return self._environment("genai-env", GENAI)

    def gguf_of_recipe(self, name: str) -> Path:
        """The GGUF file that a recipe of this project names, fetched and checked by its hashes."""
        python = self.mirror_python()
        inputs = [(ROOT / "models" / f"{name}.json").read_bytes()]

        def make(folder: Path) -> None:
            self._run([python, "-c", FETCH, name, folder])

        (file,) = self._part("source", inputs, make).glob("*.gguf")
        return file

    def bundle(self, gguf: Path) -> Path:
        """This project's bundle of a GGUF file."""
        sources = sorted(ROOT.glob("export/*.py"))
        inputs = [file_digest(gguf), *(path.read_bytes() for path in sources)]
        python = self.mirror_python()

        def make(folder: Path) -> None:
            command = [python, "-m", "export", "gguf", gguf, "--out", folder / "it"]
            self._run(command)

        return self._part("bundle", inputs, make) / "it"

    def genai_exports(self, gguf: Path) -> dict[str, Path]:
        """onnxruntime-genai's own exports of a GGUF file's weights, by precision."""
        python, inputs = self.genai_python(), [file_digest(gguf), *map(str.encode, GENAI)]

        def unpack(folder: Path) -> None:
            self._run([python, ROOT / "scripts" / "peers" / "unpack.py", gguf, folder])

        weights = self._part("weights", inputs, unpack)
        exports = {}
        for precision in GENAI_PRECISIONS:

            def build(folder: Path, precision: str = precision) -> None:
                command = [python, "-m", "onnxruntime_genai.models.builder", "-i", weights]
                options = ["-p", precision, "-e", "cpu", "-c", self.folder / "builder-cache"]
                self._run([*command, "-o", folder, *options])

            exports[precision] = self._part(f"genai-{precision}", inputs, build)
        return exports

    def _environment(self, name: str, requirements: Sequence[str], inputs: bytes = b"") -> Path:
        def make(folder: Path) -> None:
            self._run([sys.executable, "-m", "venv", folder])
            self._run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *requirements])

        folder = self._part(name, [inputs, *map(str.encode, requirements)], make)
        return folder / "bin" / "python"

    def _part(self, name: str, inputs: Iterable[bytes], make: Callable[[Path], None]) -> Path:
        """The folder `name`, made anew unless it was completed from the same inputs."""
        folder, stamp = self.folder / name, self.folder / f"{name}.complete"
        key = hashlib.sha256(b"\0".join(inputs)).hexdigest()
        if folder.is_dir() and stamp.is_file() and stamp.read_text() == key:
            return folder
        print(f"preparing {name} ...", file=sys.stderr, flush=True)
        stamp.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make(folder)
        stamp.write_text(key)
        return folder

    def _run(self, command: Sequence[Any]) -> None:
        """Run a command from the work folder; what it prints goes to a log, shown when it fails."""
        log = self.folder / "log.txt"
        with log.open("w") as output:
            done = subprocess.run(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                check=False,
            )
        if done.returncode:
            tail = log.read_text(errors="replace")[-3000:]
            words = " ".join(str(word) for word in command)
            raise SystemExit(f"{words}\nfailed with exit code {done.returncode}:\n{tail}")


def file_digest(path: Path) -> bytes:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
