"""Engines that run a model, each behind the same two calls: prefill(ids) and decode(ids, steps)."""

import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Protocol

import numpy as np

from crucible import __version__
from crucible.errors import UnavailableError


def pip_install(extra: str) -> str:
    """The command that adds an extra to this interpreter: an index may hold a namesake."""
    return f"{sys.executable} -m pip install -e '.[{extra}]' (in the checkout)"


class Engine(Protocol):
    """A loaded model. `arithmetic` says what it computes, `version` which release of the engine it is."""

    arithmetic: str
    version: str

    def prefill(self, ids: Sequence[int]) -> float:
        """Seconds from token ids to the logits of the last one, with an empty K/V cache."""

    def decode(self, ids: Sequence[int], steps: int) -> tuple[float, list[int]]:
        """(seconds of `steps` greedy steps after the prompt's own token, all steps + 1 tokens)."""


class Crucible:
    """This project, through the `generate` that a user calls; the worker's environment sets the threads."""

    def __init__(self, model: str, mode: str, threads: int):
        from crucible.model.model import Model

        self.version = __version__
        self._model = Model.load(model, device="cpu", mode=mode)
        self.arithmetic = {"f32": "f32, contract order", "int8": "int8 weights, 16-bit activations"}[mode]

    def _generate(self, ids: Sequence[int], tokens: int):
        from crucible.model.generate import generate

        return generate(self._model, ids, max_tokens=tokens, ignore_eos=True, digests=False)

    def prefill(self, ids):
        return self._generate(ids, 1).timings.prefill_seconds

    def decode(self, ids, steps):
        done = self._generate(ids, steps + 1)
        return done.timings.decode_seconds, list(done.tokens)


class Transformers:
    """Hugging Face transformers, LlamaForCausalLM in f32 with the weights that Crucible reads."""

    arithmetic = "f32, order of the library"

    def __init__(self, model: str, mode: str, threads: int):
        try:
            import torch
            from transformers import LlamaConfig, LlamaForCausalLM
        except ImportError:
            raise UnavailableError(f"transformers is not installed; run: {pip_install('peers')}") from None
        from crucible.model.model import open_checkpoint

        torch.set_num_threads(threads)
        self.version = f"{version('transformers')}, torch {torch.__version__}"
        self._torch = torch
        checkpoint = open_checkpoint(model)
        c = checkpoint.config
        if c.architecture != "llama":
            raise UnavailableError(f"the transformers peer runs llama models, {model} is {c.architecture}")
        config = LlamaConfig(
            vocab_size=c.vocab,
            hidden_size=c.hidden,
            intermediate_size=c.ffn,
            num_hidden_layers=c.layers,
            num_attention_heads=c.heads,
            num_key_value_heads=c.kv_heads,
            head_dim=c.head_dim,
            max_position_embeddings=c.context,
            rms_norm_eps=c.eps,
            tie_word_embeddings=c.tied,
            rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        )
        self._model = LlamaForCausalLM(config).float().eval()
        parameters = dict(self._model.named_parameters())
        with torch.no_grad():
            for name in checkpoint.config.tensor_shapes():
                target = parameters.pop(hugging_face_name(name))
                target.copy_(torch.from_numpy(checkpoint.read_tensor(name)))
        if parameters:
            raise UnavailableError(f"the transformers peer has no weight for {', '.join(parameters)}")

    def _step(self, ids, past):
        out = self._model(
            input_ids=self._torch.tensor([ids]), past_key_values=past, use_cache=True, logits_to_keep=1
        )
        return int(out.logits[0, -1].argmax()), out.past_key_values

    def prefill(self, ids):
        with self._torch.inference_mode():
            start = time.perf_counter()
            self._step(list(ids), None)
            return time.perf_counter() - start

    def decode(self, ids, steps):
        with self._torch.inference_mode():
            token, past = self._step(list(ids), None)
            tokens, start = [token], time.perf_counter()
            for _ in range(steps):
                token, past = self._step([token], past)
                tokens.append(token)
            return time.perf_counter() - start, tokens


def hugging_face_name(name: str) -> str:
    """The parameter of LlamaForCausalLM that holds a canonical (GGUF) tensor."""
    fixed = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if name in fixed:
        return fixed[name]
    part = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    _, layer, kind, suffix = name.split(".")
    return f"model.layers.{layer}.{part[kind]}.{suffix}"


LLAMA_CPP_CONTEXT = 2048  # its K/V cache is allocated in full and counts as its memory


class LlamaCpp:
    """llama.cpp by its Python binding, on the same GGUF file."""

    arithmetic = "other arithmetic: the file's Q4_1 weights, 8-bit activations"

    def __init__(self, model: str, mode: str, threads: int):
        try:
            from llama_cpp import Llama
        except ImportError:
            raise UnavailableError(f"llama.cpp is not installed; run: {pip_install('peers')}") from None
        from crucible.model.fetch import SOURCES, verified

        self.version = f"llama-cpp-python {version('llama-cpp-python')}"
        path = verified(model) if model in SOURCES else model
        self._llama = Llama(
            model_path=str(path),
            n_ctx=LLAMA_CPP_CONTEXT,
            n_batch=512,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

    def _greedy(self) -> int:
        pointer = self._llama._ctx.get_logits()
        return int(np.ctypeslib.as_array(pointer, shape=(self._llama.n_vocab(),)).argmax())

    def prefill(self, ids):
        self._llama.reset()
        start = time.perf_counter()
        self._llama.eval(list(ids))
        self._greedy()
        return time.perf_counter() - start

    def decode(self, ids, steps):
        self._llama.reset()
        self._llama.eval(list(ids))
        tokens, start = [self._greedy()], time.perf_counter()
        for _ in range(steps):
            self._llama.eval(tokens[-1:])
            tokens.append(self._greedy())
        return time.perf_counter() - start, tokens


# Name on the command line and in records -> (how to make it, mode).
ENGINES: dict[str, tuple[Callable[[str, str, int], Engine], str]] = {
    "crucible f32": (Crucible, "f32"),
    "crucible int8": (Crucible, "int8"),
    "transformers": (Transformers, "f32"),
    "llama.cpp": (LlamaCpp, "q4_1"),
}
PEERS = ("transformers", "llama.cpp")
# Other names for a peer: the f32 model in torch is the one of transformers.
ALIASES = {"torch": "transformers"}
