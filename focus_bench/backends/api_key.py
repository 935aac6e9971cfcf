"""The key of an endpoint: read from the environment, sent in one header, shown nowhere.

Knows no HTTP.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from focus_bench.core.errors import UsageError

KEY_VARIABLES = ("FOCUS_BENCH_API_KEY", "OPENAI_API_KEY")
HIDDEN = "[key]"


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """A key, "" for none; its text is in neither repr nor str."""

    text: str = field(default="", repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "ApiKey":
        """The first of KEY_VARIABLES that is set and not empty.

        Raises UsageError, without the key, for one that no HTTP header can carry.
        """
        for name in KEY_VARIABLES:
            text = environment.get(name, "").strip()
            if text and not (text.isascii() and text.isprintable()):
                raise UsageError(name, "(not shown)", "printable ASCII characters")
            if text:
                return cls(text=text)
        return cls()

    def headers(self) -> dict[str, str]:
        """The header that carries it."""
        return {"Authorization": f"Bearer {self.text}"} if self.text else {}

    def hidden_in(self, text: str) -> str:
        """`text` with the key, which a server may repeat in its errors, taken out."""
        return text.replace(self.text, HIDDEN) if self.text else text
