"""The whole recipe of focus-tiny in one place: sizes, rows, objective, optimiser, bookkeeping.

Knows no data and no device. What is not here is the data itself (its generator and tokenizer are
not the engine's business) and how a step is executed, which changes its speed only.
"""

import dataclasses
from dataclasses import dataclass

from focus_bench.core.errors import UsageError, check_choice, check_range
from focus_bench.core.model_spec import DTYPE_BYTES, ModelSpec


@dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """Everything that the trained weights depend on, apart from the documents.

    Lengths are in tokens. Raises UsageError for values that do not go together.
    """

    # Model: SDAR layers (QK norm, grouped queries, SwiGLU). These sizes give 9.8 M parameters,
    # 19.7 MB in 16 bits. Eight layers: eviction acts from layer 1 on, so depth is what it saves.
    name: str = "focus-tiny"
    num_layers: int = 8
    hidden_size: int = 320
    num_q_heads: int = 8
    num_kv_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 896
    vocab_size: int = 2048
    rope_theta: float = 1e4  # enough for 1,024 positions; 1e6 would leave most pairs unturned
    context_length: int = 1024
    block_length: int = 32

    # Rows: each holds the clean and the noised blocks of several documents (see packing).
    row_length: int = 2048
    rows_per_step: int = 64  # 131,072 tokens a step, clean and noised
    noised_copies: int = 2  # noised copies that share one clean copy: it costs as much as they do
    multi_task_fraction: float = 0.15  # documents that are chained up to the context length

    # Objective: block diffusion, masked cross-entropy weighted 1 / t (BD3-LM, SDAR).
    min_noise: float = 0.1  # t >= this, so that no weight exceeds 10
    full_mask_fraction: float = 0.1  # blocks with t = 1: the first step of every decoded block
    fill_weight: float = 0.1  # of the stop tokens that fill a reply's last block

    # Optimiser: AdamW, linear warm-up, cosine decay; the average of the weights is what ships.
    total_steps: int = 7000
    warmup_steps: int = 300
    peak_lr: float = 2e-3
    final_lr_fraction: float = 0.01
    beta_1: float = 0.9
    beta_2: float = 0.95
    weight_decay: float = 0.1  # on matrices, not on norms and embeddings
    clip_norm: float = 1.0
    ema_decay: float = 0.999
    seed: int = 0

    # Bookkeeping.
    log_interval: int = 50
    evaluation_interval: int = 500
    evaluation_batches: int = 4
    export_dtype: str = "bfloat16"  # the dtype that the forward pass of training computes in

    def __post_init__(self) -> None:
        for field in ("rows_per_step", "noised_copies", "total_steps", "log_interval"):
            check_range(f"recipe {field}", getattr(self, field), low=1)
        check_range("recipe evaluation_interval", self.evaluation_interval, low=1)
        check_range("recipe evaluation_batches", self.evaluation_batches, low=1)
        check_range("recipe block_length", self.block_length, low=1)
        for field in ("context_length", "row_length"):
            if getattr(self, field) < 1 or getattr(self, field) % self.block_length:
                raise UsageError(
                    f"recipe {field}", getattr(self, field), f"multiples of {self.block_length}"
                )
        if self.row_length < 2 * self.context_length:
            raise UsageError(
                "recipe row_length",
                self.row_length,
                f">= {2 * self.context_length} (a clean and a noised copy of context_length)",
            )
        for field in ("multi_task_fraction", "full_mask_fraction", "fill_weight"):
            check_range(f"recipe {field}", getattr(self, field), low=0.0, high=1.0)
        check_range("recipe min_noise", self.min_noise, low=0.0, high=1.0, low_open=True)
        check_range("recipe warmup_steps", self.warmup_steps, low=0, high=self.total_steps)
        check_range("recipe peak_lr", self.peak_lr, low=0.0, low_open=True)
        check_range("recipe final_lr_fraction", self.final_lr_fraction, low=0.0, high=1.0)
        check_range("recipe clip_norm", self.clip_norm, low=0.0, low_open=True)
        check_range("recipe ema_decay", self.ema_decay, low=0.0, high=1.0)
        check_range("recipe seed", self.seed, low=0, high=2**63 - 1)
        check_choice("recipe export_dtype", self.export_dtype, tuple(DTYPE_BYTES))

    @property
    def slots_per_row(self) -> int:
        """Blocks in a row."""
        return self.row_length // self.block_length

    @property
    def tokens_per_step(self) -> int:
        """Tokens that go through the layers in one step, clean, noised and unused."""
        return self.rows_per_step * self.row_length

    def replace(self, **changes: object) -> "TrainingRecipe":
        """A copy with some fields changed (validated again)."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def model_spec(self, *, mask_token_id: int, eos_token_id: int) -> ModelSpec:
        """Dimensions of the trained model; the two ids come with the documents."""
        return ModelSpec(
            name=self.name,
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            num_q_heads=self.num_q_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate_size,
            vocab_size=self.vocab_size,
            mask_token_id=mask_token_id,
            stop_token_ids=(eos_token_id,),
            rope_theta=self.rope_theta,
            max_position_embeddings=self.context_length,
            block_length=self.block_length,
            dtype=self.export_dtype,
        )


FOCUS_TINY = TrainingRecipe()

# A minute of a laptop's core shows the whole path: 20 steps, and the loss falls.
SMOKE = TrainingRecipe(
    name="focus-smoke",
    num_layers=2,
    hidden_size=64,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=128,
    context_length=512,
    row_length=1024,
    rows_per_step=2,
    total_steps=20,
    warmup_steps=4,
    peak_lr=5e-3,
    ema_decay=0.9,
    log_interval=5,
    evaluation_interval=10,
    evaluation_batches=1,
)
