"""A small recipe and small documents that training tests share."""

import numpy as np

from focus_bench.engine.training.documents import TokenDocuments
from focus_bench.engine.training.recipe import TrainingRecipe

EOS, MASK = 0, 1

TINY = TrainingRecipe(
    name="training-test",
    num_layers=2,
    hidden_size=32,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=64,
    vocab_size=64,
    context_length=64,
    block_length=8,
    row_length=128,
    rows_per_step=6,
    multi_task_fraction=0.3,
    total_steps=20,
    warmup_steps=4,
    peak_lr=1e-2,
    ema_decay=0.5,
    log_interval=5,
    evaluation_interval=10,
    evaluation_batches=2,
)


def documents(count: int = 120, seed: int = 0, longest: int = 60) -> TokenDocuments:
    """Prompts of 0 to 20 tokens from a part of the vocabulary; replies repeat one token each."""
    random = np.random.default_rng(seed)
    pairs = []
    for _ in range(count):
        prompt = random.integers(2, 20, size=random.integers(0, 21)).tolist()
        token = prompt[0] if prompt else 2
        reply = [token] * int(random.integers(0, longest - 20)) + [EOS]
        pairs.append((prompt, reply))
    return TokenDocuments.from_pairs(pairs, mask_token_id=MASK, eos_token_id=EOS)
