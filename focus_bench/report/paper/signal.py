"""Figures 2, 3 and 14 as tables: what a step decodes, and how far importance gives it away."""

from collections.abc import Sequence

from focus_bench.report import formats
from focus_bench.report.decodability import (
    DeltaStatistics,
    LayerImportance,
    StepShareStatistics,
)
from focus_bench.report.export import Cell
from focus_bench.report.paper.published import SDAR, SOURCE, TOKENS_PER_STEP
from focus_bench.report.paper.quality import PaperColumn, PaperTable


def fig2_table(shares: StepShareStatistics, basis: Sequence[str]) -> PaperTable:
    """Rows: how many positions a step decodes, with the share of steps that do."""
    low, high = TOKENS_PER_STEP
    length = shares.block_length
    cumulated, rows = 0, list[dict[str, Cell]]()
    last = max(c for c, n in enumerate(shares.decoded_counts) if n)
    for count, number in enumerate(shares.decoded_counts[: last + 1]):
        cumulated += number
        rows.append(
            {
                "decoded": count,
                "share_of_block": count / length,
                "steps": number,
                "share_of_steps": number / shares.num_rows,
                "cumulated_share_of_steps": cumulated / shares.num_rows,
                "source": "measured",
            }
        )
    return PaperTable(
        name="fig2",
        lines=(
            "Fig. 2: share of decodable tokens per step, without eviction",
            *basis,
            f"measured at threshold {shares.threshold:g}: {shares.tokens_per_step:.2f} of B = "
            f"{length} tokens a step = {formats.share(shares.share_of_block)} of the fed and "
            f"{formats.share(shares.share_of_masked)} of the masked positions; in "
            f"{formats.share(shares.forced)} of the {shares.num_rows:,} steps nothing reached the "
            "threshold and the most confident position was taken",
            f"published: {low:.2f} to {high:.2f} of B = 32 = {formats.share(low / 32)} to "
            f"{formats.share(high / 32)} of the fed ({SOURCE}, section 2, {SDAR})",
        ),
        columns=(
            PaperColumn(key="decoded", heading="decoded\nin a step", is_name=True),
            PaperColumn(key="share_of_block", heading="of the\nblock", show=_share),
            PaperColumn(key="steps", heading="steps"),
            PaperColumn(key="share_of_steps", heading="of\nsteps", show=_share),
            PaperColumn(key="cumulated_share_of_steps", heading="up to\nhere", show=_share),
            PaperColumn(key="source"),
        ),
        rows=tuple(rows),
    )


def fig3_table(
    layers: Sequence[LayerImportance], position_auc: float | None, basis: Sequence[str]
) -> PaperTable:
    """Rows: layers, with importance of both kinds and how well it and its delta rank them."""
    rows: list[dict[str, Cell]] = [
        {
            "layer": layer.layer,
            "decodable_mean": layer.decodable_mean,
            "other_mean": layer.other_mean,
            "auc": layer.auc,
            "auc_within_steps": layer.auc_within_rows,
            "delta_auc": layer.delta_auc,
            "delta_auc_within_steps": layer.delta_auc_within_rows,
            "source": "measured",
        }
        for layer in layers
    ]
    return PaperTable(
        name="fig3",
        lines=(
            "Fig. 3: importance of decodable and other masked tokens by layer",
            *basis,
            "importance: Eq. 2 over the number of heads, so 1 is a uniform share; AUC: the chance "
            "that a decodable token ranks above another, among all steps and within one step "
            "(0.5: no signal); delta: of this layer minus the layer before",
            *_best_lines(layers),
            f'"leftmost first", without any attention: AUC within steps {_fixed3(position_auc)}',
            f"published ({SOURCE}, section 3.1): negligible difference in layer 0; from layer 1 "
            "on decodable tokens gain attention and others are suppressed (a plot, no figures)",
        ),
        columns=(
            PaperColumn(key="layer", heading="layer", is_name=True),
            PaperColumn(key="decodable_mean", heading="decodable\nmean", show=_fixed3),
            PaperColumn(key="other_mean", heading="other\nmean", show=_fixed3),
            PaperColumn(key="auc", heading="AUC\nall", show=_fixed3),
            PaperColumn(key="auc_within_steps", heading="AUC\nin step", show=_fixed3),
            PaperColumn(key="delta_auc", heading="delta\nAUC all", show=_fixed3),
            PaperColumn(key="delta_auc_within_steps", heading="delta\nAUC in step", show=_fixed3),
            PaperColumn(key="source"),
        ),
        rows=tuple(rows),
    )


def fig14_table(delta: DeltaStatistics, basis: Sequence[str]) -> PaperTable:
    """Rows: one figure of the signal each, or one alpha's figure of the whole rule."""
    decodable, other = delta.decodable, delta.other
    figures: list[tuple[str, Cell, str]] = [
        ("decodable tokens", decodable.count, ""),
        ("other masked tokens", other.count, ""),
        ("mu: decodable mean", decodable.mean, ""),
        ("other mean", other.mean, "Appendix D: 0"),
        ("decodable std", decodable.std, "Appendix D: sigma"),
        ("sigma: other std", other.std, ""),
        ("decodable skewness", decodable.skewness, "Appendix D: 0"),
        ("other skewness", other.skewness, "Appendix D: 0"),
        ("gamma = mu / sigma", delta.gamma, "Appendix D: far above 1"),
        ("AUC, all steps", delta.auc, ""),
        ("AUC, within steps", delta.auc_within_rows, ""),
        ("AUC, passing steps", delta.auc_within_passing_rows, "steps that reach the threshold"),
        ("P_err = Q(gamma - 1)", delta.bound, "Appendix D: bound"),
        ("missed below sigma", delta.missed_at_sigma, "P_err's own rule"),
        ("missed below Eq. 5", delta.missed_at_row_limit, "the step's mean + std alone"),
    ]
    for index, alpha in enumerate(delta.alphas):
        rule = f"rule, alpha {alpha:g}"
        figures += [
            (f"{rule}: missed", delta.missed_by_rule[index], ""),
            (f"{rule}: kept", delta.kept_by_rule[index], ""),
            (f"{rule}: no loss", delta.rows_without_loss[index], ""),
        ]
    rows: list[dict[str, Cell]] = [
        {"figure": name, "value": value, "remark": said, "source": "measured"}
        for name, value, said in figures
    ]
    return PaperTable(
        name="fig14",
        lines=(
            "Fig. 14 and Appendix D: importance delta (layer 1 minus layer 0) of decodable and "
            "other masked tokens",
            *basis,
            "missed: share of decodable tokens that would be evicted; rule: FOCUS's, with budget, "
            "outliers and both constraints, applied to these very steps (kept: share of masked "
            "tokens that it keeps; no loss: share of steps that lose no decodable one)",
            f"published ({SOURCE}, Appendix D): the model and its bound, no figures",
        ),
        columns=(
            PaperColumn(key="figure", heading="figure", is_name=True),
            PaperColumn(key="value", heading="measured", show=_value),
            PaperColumn(key="remark", heading="remark"),
            PaperColumn(key="source"),
        ),
        rows=tuple(rows),
    )


def _best_lines(layers: Sequence[LayerImportance]) -> list[str]:
    """Which raw importance and which layer pair tell most within a step."""
    raw = [(layer.auc_within_rows or 0.0, layer.layer) for layer in layers]
    pairs = [
        (layer.delta_auc_within_rows, layer.layer)
        for layer in layers
        if layer.delta_auc_within_rows is not None
    ]
    lines = []
    if pairs:
        value, layer = max(pairs)
        lines.append(
            f"the pair with most signal within steps: layers {layer} - {layer - 1}, AUC "
            f"{value:.3f}; FOCUS uses 1 - 0, AUC {pairs[0][0]:.3f}"
        )
    if raw:
        value, layer = max(raw)
        lines.append(f"raw importance tells most in layer {layer}, AUC {value:.3f}")
    return lines


def _share(cell: Cell) -> str:
    return formats.share(None if cell is None else float(cell))


def _fixed3(cell: Cell) -> str:
    return formats.fixed(None if cell is None else float(cell), 3)


def _value(cell: Cell) -> str:
    return f"{cell:,}" if isinstance(cell, int) else _fixed3(cell)
