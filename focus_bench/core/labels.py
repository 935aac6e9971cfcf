"""What in a result stands for something else (dummy weights, synthetic acceptance, ...), in words.

The one place for these words: run records, tables, CSV rows and plots all take them from here.
"""

from focus_bench.core.config import PointConfig
from focus_bench.core.workload import Provenance


def point_labels(
    point: PointConfig, provenance: Provenance, *, dummy_weights: bool
) -> tuple[str, ...]:
    """Labels of a point; `dummy_weights`: its tokens came from random weights."""
    labels = []
    if dummy_weights:
        labels.append("dummy weights")
    if point.acceptance.kind == "synthetic":
        labels.append(f"synthetic acceptance ({point.acceptance.label})")
    if point.acceptance.kind == "replay":
        labels.append(f"replayed acceptance ({point.acceptance.label})")
    if point.importance.kind == "synthetic":
        labels.append(f"synthetic importance ({point.importance.label})")
    if provenance.synthetic:
        labels.append(f"synthetic data ({provenance.dataset})")
    return tuple(labels)
