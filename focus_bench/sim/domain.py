"""What a prediction rests on: measurements close by, between wide ones, or beyond them.

Knows shares of predicted time, not where they come from.
"""

CALIBRATED, INTERPOLATED, EXTRAPOLATED = "calibrated", "interpolated", "extrapolated"
# Shares of the predicted time from which on a point is called so.
WIDE_SHARE = 0.10
OUTSIDE_SHARE = 0.05

Shares = tuple[float, float, float]  # measured densely, interpolated widely, extrapolated


def domain_of(shares: Shares) -> str:
    """One word for a prediction, by shares of its time (Tally.shares)."""
    _, wide, outside = shares
    if outside > OUTSIDE_SHARE:
        return EXTRAPOLATED
    return INTERPOLATED if wide > WIDE_SHARE else CALIBRATED


def domain_note(shares: Shares) -> str:
    """The same as a note of every output."""
    return {
        CALIBRATED: "costs calibrated",
        INTERPOLATED: "costs interpolated between measurements more than a factor 2 apart",
        EXTRAPOLATED: "costs extrapolated beyond what was measured",
    }[domain_of(shares)]


def shares_text(shares: Shares) -> str:
    """The shares in percent, for the settings of a prediction."""
    dense, wide, outside = (round(100.0 * share, 1) for share in shares)
    return f"{dense} % calibrated, {wide} % interpolated, {outside} % extrapolated"
