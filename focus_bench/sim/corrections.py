"""What whole measured steps say beside the curves of their parts. Knows no curve and no step."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Corrections:
    """What whole measured steps say about a part.

    Its seconds are scale * curves + constant + per_sequence * sequences. (In prefix and eviction
    the device waits for what the host describes.)
    """

    scale: Mapping[str, float] = field(default_factory=dict)
    constant_s: Mapping[str, float] = field(default_factory=dict)
    per_sequence_s: Mapping[str, float] = field(default_factory=dict)

    def of(self, part: str, seconds: float, sequences: float) -> float:
        """A part's seconds, corrected; nothing stays nothing."""
        if seconds <= 0.0:
            return 0.0
        added = self.constant_s.get(part, 0.0) + self.per_sequence_s.get(part, 0.0) * sequences
        return self.scale.get(part, 1.0) * seconds + added


NO_CORRECTIONS = Corrections()
