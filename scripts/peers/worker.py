"""One engine in a process of its own, which answers compare_peers.py one line at a time.

    worker.py mirror BUNDLE --precision int8 --threads 1
    worker.py genai FOLDER --threads 1

Requests and answers are JSON objects, one a line:

    {"do": "encode", "messages": [...]}                 -> {"prompt": [ids]}      (mirror only)
    {"do": "decode", "messages": [...], "prompt": [ids], "new_tokens": n}
                                                        -> {"tokens": [ids], "tokens_per_s": x}
    {"do": "follow", "prompt": [ids], "text": [ids]}    -> {"choices": [ids]}

"decode" is greedy; its speed leaves out the prompt and the first token. "follow" feeds `text` one
token at a time, as decoding would, and answers the greedy choice before each of them.
"""

import argparse
import ctypes
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

CONTEXT = 1024


class Engine(Protocol):
    """What both engines answer."""

    def decode(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Greedy text after a prompt, and its speed."""

    def follow(self, prompt: Sequence[int], text: Sequence[int]) -> list[int]:
        """The greedy choice before each token of `text`."""


class Mirror:
    """This project's runtime: its public session for speed, one graph session for choices."""

    def __init__(self, bundle: Path, precision: str, threads: int) -> None:
        from runtime import open_session

        self._bundle, self._precision, self._threads = bundle, precision, threads
        self._session = open_session(
            bundle,
            precision=precision,
            draft="none",
            strategy="autoregressive",
            threads=threads,
            context_length=CONTEXT,
        )

    def encode(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The tokens of a chat, up to where the answer begins."""
        from runtime.text import Text

        return Text.load(self._bundle).encode_chat(messages)

    def decode(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Greedy text and its speed, by this process's clock from the first piece to the end."""
        from runtime.sampling import Sampling

        answer = self._session.generate(
            request["messages"], Sampling(temperature=0.0), max_new_tokens=request["new_tokens"]
        )
        pieces = iter(answer)
        next(pieces)
        start, already = time.perf_counter(), len(answer.tokens)
        for _ in pieces:
            pass
        seconds = time.perf_counter() - start
        tokens = list(answer.tokens)
        return {"tokens": tokens, "tokens_per_s": (len(tokens) - already) / seconds}

    def follow(self, prompt: Sequence[int], text: Sequence[int]) -> list[int]:
        """The greedy choice before each token of `text`."""
        import numpy as np

        from runtime.fused import FusedSession
        from runtime.manifest import Manifest

        manifest = Manifest.load(self._bundle)
        path = manifest.graph_path("target", self._precision)
        geometry = manifest.target.geometry
        session = FusedSession(path, geometry, threads=self._threads, context=CONTEXT)
        whole = np.array([*prompt, *text], np.int64)
        return [int(session.extend(whole[:end]).argmax()) for end in range(len(prompt), len(whole))]


class GenAI:
    """onnxruntime-genai on a folder its own builder wrote."""

    def __init__(self, folder: Path, threads: int) -> None:
        import onnxruntime_genai

        self._library = onnxruntime_genai
        config = onnxruntime_genai.Config(str(folder))
        session_options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session_options}}}))
        self._model = onnxruntime_genai.Model(config)

    def decode(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Greedy text and its speed, by this process's clock from the first token to the end."""
        prompt, new_tokens = request["prompt"], request["new_tokens"]
        generator = self._generator(len(prompt) + new_tokens)
        generator.append_tokens(prompt)
        generator.generate_next_token()
        start = time.perf_counter()
        while not generator.is_done():
            generator.generate_next_token()
        seconds = time.perf_counter() - start
        tokens = [int(token) for token in generator.get_sequence(0)[len(prompt) :]]
        return {"tokens": tokens, "tokens_per_s": (len(tokens) - 1) / seconds}

    def follow(self, prompt: Sequence[int], text: Sequence[int]) -> list[int]:
        """The greedy choice before each token of `text`."""
        generator = self._generator(CONTEXT)
        generator.append_tokens(prompt)
        choices = [int(generator.get_logits().argmax())]
        for token in text[:-1]:
            generator.append_tokens([token])
            choices.append(int(generator.get_logits().argmax()))
        return choices

    def _generator(self, max_length: int) -> Any:
        parameters = self._library.GeneratorParams(self._model)
        parameters.set_search_options(do_sample=False, max_length=max_length)
        return self._library.Generator(self._model, parameters)


def answer(engine: Engine, request: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out one request; ValueError when it is none."""
    match request["do"]:
        case "encode" if isinstance(engine, Mirror):
            return {"prompt": engine.encode(request["messages"])}
        case "decode":
            return engine.decode(request)
        case "follow":
            return {"choices": engine.follow(request["prompt"], request["text"])}
    raise ValueError(f"no such request: {request['do']}")


class SignalStack(ctypes.Structure):
    """The stack_t of sigaltstack(2)."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("size", ctypes.c_size_t),
    )


def deny_amx() -> ctypes.Array[ctypes.c_char]:
    """Have Linux refuse this process the AMX unit, before a library asks for it.

    The kernel grants AMX only where every alternate signal stack could hold its registers; one that
    is too small, installed now, stands in the way. Returns that stack, which must be kept. Raises
    OSError where it cannot be installed.
    """
    memory = ctypes.create_string_buffer(4096)
    stack = SignalStack(ctypes.addressof(memory), 0, len(memory))
    if ctypes.CDLL(None, use_errno=True).sigaltstack(ctypes.byref(stack), None):
        raise OSError(ctypes.get_errno(), "sigaltstack")
    return memory


def main() -> None:
    """Answer requests until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["mirror", "genai"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--without-amx", action="store_true")
    options = parser.parse_args()
    kept = deny_amx() if options.without_amx else None
    # What libraries print must not fall between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    engine: Engine
    if options.kind == "mirror":
        engine = Mirror(options.model, options.precision, options.threads)
    else:
        engine = GenAI(options.model, options.threads)
    for line in sys.stdin:
        print(json.dumps(answer(engine, json.loads(line))), file=answers, flush=True)
    del kept


if __name__ == "__main__":
    main()
