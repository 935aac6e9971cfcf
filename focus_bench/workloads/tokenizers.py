"""What every tokenizer here can do, and the one that needs no files: plain bytes.

Knows no data set and no model; ids of a Hugging Face folder are hf_tokenizer's matter.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from focus_bench.core.errors import UsageError
from focus_bench.core.model_folder import checkpoint_folder
from focus_bench.core.model_spec import BUNDLED_MODELS
from focus_bench.core.workload import TokenArray

if TYPE_CHECKING:
    from focus_bench.workloads.chat_template import Turn


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def name(self) -> str:
        """What reports show."""
        ...

    @property
    def size(self) -> int:
        """Number of known ids; those from here on are padding of the vocabulary."""
        ...

    @property
    def mask_token_id(self) -> int | None:
        """Id of the mask token, None where there is none."""
        ...

    @property
    def eos_token_id(self) -> int | None:
        """Id of the end of a sequence, None where there is none."""
        ...

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Ids that stand for no text, mask and end of sequence included."""
        ...

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat_prompt` does more than `encode`."""
        ...

    def encode(self, text: str) -> TokenArray:
        """Ids of `text`, shape [tokens], int32; nothing is put before or after it."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        """`encode` of every text, in order."""
        ...

    def count_tokens(self, texts: Sequence[str], at_most: int) -> list[int]:
        """How many tokens each text has, counted to `at_most`."""
        ...

    def decode(self, ids: npt.ArrayLike, skip_special: bool = True) -> str:
        """Text of `ids`, shape [tokens]; bytes that are no whole character become U+FFFD."""
        ...

    def chat_prompt(self, user_text: str) -> tuple[TokenArray, bool]:
        """Ids of one user turn, ready for a reply, and whether there was a template for it.

        Without a chat template the ids are those of the raw text.
        """
        ...

    def chat_prompts(self, user_texts: Sequence[str]) -> list[TokenArray]:
        """The ids of `chat_prompt` for every text, in order."""
        ...

    def chat_text(self, turns: Sequence["Turn"]) -> str | None:
        """The prompt for several turns as text that `encode` takes, up to where the reply goes on.

        None where the chat form has no spelling as text.
        """
        ...


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of UTF-8, followed by mask, end, user and assistant marker.

    The tokenizer of the dummy-tiny preset. Its chat form is user marker, text, assistant marker.
    """

    MASK = 256
    EOS = 257
    USER = 258
    ASSISTANT = 259
    SPECIAL_TEXTS = ("<mask>", "<eos>", "<user>", "<assistant>")

    name = "byte"
    size = 260
    mask_token_id: int | None = MASK
    eos_token_id: int | None = EOS
    special_token_ids = frozenset(range(256, 260))
    has_chat_template = True

    def encode(self, text: str) -> TokenArray:
        """Ids of the text's UTF-8 bytes; half surrogates, which have none, become "?"."""
        return np.frombuffer(text.encode("utf-8", "replace"), dtype=np.uint8).astype(np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        """`encode` of every text, in order."""
        return [self.encode(text) for text in texts]

    def count_tokens(self, texts: Sequence[str], at_most: int) -> list[int]:
        """How many bytes of UTF-8 each text has, counted to `at_most`."""
        return [min(len(self.encode(text)), at_most) for text in texts]

    def decode(self, ids: npt.ArrayLike, skip_special: bool = True) -> str:
        """Text of `ids`; special ids show as "<mask>" and so on, ids of the padding not at all."""
        pieces = bytearray()
        for token in np.asarray(ids, dtype=np.int64).reshape(-1).tolist():
            if 0 <= token < 256:
                pieces.append(token)
            elif not skip_special and 256 <= token < self.size:
                pieces += self.SPECIAL_TEXTS[token - 256].encode()
        return pieces.decode("utf-8", "replace")

    def chat_prompt(self, user_text: str) -> tuple[TokenArray, bool]:
        """User marker, the text's bytes, assistant marker."""
        ids = np.concatenate(([self.USER], self.encode(user_text), [self.ASSISTANT]))
        return ids.astype(np.int32), True

    def chat_prompts(self, user_texts: Sequence[str]) -> list[TokenArray]:
        """The ids of `chat_prompt` for every text, in order."""
        return [self.chat_prompt(text)[0] for text in user_texts]

    def chat_text(self, turns: Sequence["Turn"]) -> str | None:
        """None: the markers are ids without a text."""
        return None


def load_tokenizer(name_or_folder: str) -> Tokenizer:
    """The tokenizer that --tokenizer names: "" or "byte", else that of a checkpoint.

    A checkpoint is a bundled model's name or a folder in Hugging Face's layout. Raises UsageError
    for anything else, or a folder without a usable tokenizer.
    """
    if name_or_folder in ("", "byte"):
        return ByteTokenizer()
    folder = checkpoint_folder(name_or_folder)
    if not os.path.isdir(folder):  # False also for a name that no system takes
        raise UsageError(
            "--tokenizer",
            name_or_folder,
            f"byte, {', '.join(BUNDLED_MODELS)}, or an existing folder with tokenizer.json or "
            "vocab.json and merges.txt",
        )
    from focus_bench.workloads.hf_tokenizer import HfTokenizer

    return HfTokenizer(folder, name=name_or_folder)
