"""What a prediction rests on: measurements close by, between wide ones, or beyond them.

Knows shares of predicted time, not where they come from.
"""

CALIBRATED, INTERPOLATED, EXTRAPOLATED = "calibrated", "interpolated", "extrapolated"
# Shares of the predicted time from which on a point is called so.
WIDE_SHARE = 0.10
OUTSIDE_SHARE = 0.01

Shares = tuple[float, float, float]  # measured densely, interpolated widely, extrapolated


def domain_of(shares: Shares) -> str:
    """One word for a prediction, by shares of its time (Tally.shares)."""
    _, wide, outside = shares
    if outside > OUTSIDE_SHARE:
        return EXTRAPOLATED
    return INTERPOLATED if wide > WIDE_SHARE else CALIBRATED


def domain_note(shares: Shares) -> str:
    """The same in words, with the shares."""
    dense, wide, outside = (round(100.0 * share) for share in shares)
    return (
        f"{domain_of(shares)}: {dense} % of the predicted time between measurements at most a "
        f"factor 2 apart, {wide} % between wider ones, {outside} % beyond them"
    )
