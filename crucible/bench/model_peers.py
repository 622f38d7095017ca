"""transformers on the same GPU: its forward, its generate, and a compiled step over a static cache."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from crucible.errors import UnavailableError
from crucible.model.config import ModelConfig

_F32 = "f32, order of the library, TF32 off"
_CALLS = 10


@dataclass(frozen=True)
class Peer:
    """A contender of one task; `run` gives a sample in the task's unit."""

    name: str
    arithmetic: str
    run: Callable[[], float]


class Peers:
    """A model of transformers with the shapes of ours (its weights are random) and the same prompts."""

    def __init__(self, config: ModelConfig, prompts: np.ndarray, short: np.ndarray, steps: int):
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        self.torch, self.steps = torch, steps
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        made = LlamaConfig(
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            intermediate_size=config.ffn,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context,
            rope_theta=config.rope_theta,
            rms_norm_eps=config.eps,
            tie_word_embeddings=config.tied,
            attn_implementation="sdpa",
        )
        with torch.device("cuda"):
            self.model = LlamaForCausalLM(made).float().eval()
        self.model.generation_config.pad_token_id = 0
        self.prompts, self.short = (torch.from_numpy(a).cuda() for a in (prompts, short))
        self._compiled: Any = None

    @classmethod
    def load(cls, config, prompts, short, steps, compiled: bool, absent: list[tuple[str, str]]) -> "Peers":
        """The peers that work here; why another does not goes to `absent`.

        UnavailableError without transformers.
        """
        try:
            made = cls(config, prompts, short, steps)
        except ImportError as error:
            raise UnavailableError(
                f"the peers need torch and transformers ({error}); leave --against out"
            ) from None
        made._generate()
        for name, make in made.ways.items() if compiled else ():
            try:
                made._compiled = name, make()
                break
            except Exception as error:  # whatever its compiler lacks here is what the record should say
                absent.append((name, f"{type(error).__name__}: {error}".splitlines()[0][:300]))
        return made

    def contenders(self, task: str) -> list[Peer]:
        """The peers of a task of crucible.bench.model_gpu."""
        last = {"logits_to_keep": 1}
        if task == "prefill_device":
            return [
                Peer("transformers f32", f"{_F32}; logits of every row", lambda: self._device({})),
                Peer("transformers f32, last logits", _F32, lambda: self._device(last)),
            ]
        if task == "prefill_wall":
            return [
                Peer("transformers f32", f"{_F32}; logits of every row", lambda: self._wall({})),
                Peer("transformers f32, last logits", _F32, lambda: self._wall(last)),
            ]
        found = [Peer("transformers f32 generate", _F32, lambda: self._rate(self._generate))]
        if self._compiled is not None:
            name, run = self._compiled
            what = f"{_F32}; decode steps under torch.compile with CUDA graphs"
            found.append(Peer(name, what, lambda: self._rate(run)))
        return found

    def _forward(self, options: dict) -> None:
        with self.torch.inference_mode():
            self.model(self.prompts, **options)

    def _device(self, options: dict) -> float:
        torch = self.torch
        self._forward(options)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(_CALLS):
            self._forward(options)
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / _CALLS

    def _wall(self, options: dict) -> float:
        started = time.perf_counter()
        self._forward(options)
        self.torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - started)

    def _rate(self, run: Callable[[], Any]) -> float:
        self.torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        return self.short.shape[0] * self.steps / (time.perf_counter() - started)

    @property
    def ways(self) -> dict[str, Callable[[], Callable[[], Any]]]:
        """How the static cache and torch.compile go together, the leanest first; each gives a warm loop."""
        return {
            "transformers f32, static cache, compiled step in a loop of ours": self._compile_step,
            "transformers f32 generate, static cache, compiled": self._compile_generate,
        }

    def _generate(self, **options: Any) -> list[list[int]]:
        with self.torch.inference_mode():
            mask = self.torch.ones_like(self.short)
            steps = {"max_new_tokens": self.steps, "min_new_tokens": self.steps}
            out = self.model.generate(self.short, attention_mask=mask, do_sample=False, **steps, **options)
        return out[:, self.short.shape[1] :].tolist()

    def _warm(self, run: Callable[[], list[list[int]]]) -> Callable[[], list[list[int]]]:
        for _ in range(3):
            made = run()
        if made != self._generate():
            raise RuntimeError("the compiled loop chose other tokens than generate")
        return run

    def _compile_generate(self) -> Callable[[], list[list[int]]]:
        return self._warm(lambda: self._generate(cache_implementation="static"))

    def _compile_step(self) -> Callable[[], list[list[int]]]:
        from transformers import StaticCache

        length = self.short.shape[1] + self.steps
        self._cache = StaticCache(config=self.model.config, max_cache_len=length)
        at = self.short.shape[1]
        self._places = [self.torch.full((1, 1), at + i, device="cuda") for i in range(self.steps)]
        self._step = self.torch.compile(self.model.forward, mode="reduce-overhead", fullgraph=True)
        return self._warm(self._static)

    def _static(self) -> list[list[int]]:
        torch, at = self.torch, self.short.shape[1]
        with torch.no_grad():
            self._cache.reset()
            options = {"past_key_values": self._cache, "use_cache": True, "logits_to_keep": 1}
            out = self.model(self.short, position_ids=torch.arange(at, device="cuda")[None], **options)
            tokens = [out.logits[:, -1:].argmax(-1)]
            for step in range(self.steps - 1):
                torch.compiler.cudagraph_mark_step_begin()
                place = self._places[step]
                out = self._step(tokens[-1], position_ids=place, **options)
                tokens.append(out.logits[:, -1:].argmax(-1).clone())
            return torch.cat(tokens, 1).tolist()
