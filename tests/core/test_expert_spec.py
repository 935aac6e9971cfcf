"""Shapes of experts that cannot be are refused by name."""

import pytest

from focus_bench.core.errors import UsageError
from focus_bench.core.expert_spec import ExpertSpec
from focus_bench.core.model_spec import PRESETS

EXPERTS = ExpertSpec(
    num_experts=16, experts_per_token=4, expert_size=24, router="sigmoid", num_groups=4
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": 0}, "num_experts: 0.*>= 1"),
        ({"num_experts": 18}, "num_experts: 18.*multiples of 4 groups"),
        ({"num_groups": 16}, "num_groups: 16.*groups of at least 2"),
        ({"num_kept_groups": 5}, "num_kept_groups: 5.*<= 4"),
        ({"num_kept_groups": 2, "experts_per_token": 9}, "experts_per_token: 9.*<= 8"),
        ({"experts_per_token": 0}, "experts_per_token: 0"),
        ({"shared_size": -1}, "shared_size: -1"),
        ({"num_dense_layers": -1}, "num_dense_layers: -1"),
        ({"router": "linear"}, "router: 'linear'.*softmax, sigmoid"),
        ({"router": "softmax"}, r"router: 'softmax'.*sigmoid \(with groups or a bias\)"),
        (
            {"router": "softmax", "num_groups": 1, "has_router_bias": True},
            r"router: 'softmax'.*sigmoid \(with groups or a bias\)",
        ),
        ({"routed_scale": 0.0}, "routed_scale: 0.0.*> 0"),
    ],
)
def test_impossible_experts(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EXPERTS.replace(num_kept_groups=1).replace(**changes)


def test_more_dense_layers_than_layers_are_refused() -> None:
    spec = PRESETS["llada2-mini"]
    assert spec.experts is not None
    with pytest.raises(UsageError, match=r"num_dense_layers: 21.*at most 20"):
        spec.replace(experts=spec.experts.replace(num_dense_layers=21))
    assert spec.replace(experts=spec.experts.replace(num_dense_layers=20)).num_expert_layers == 0


def test_a_token_of_llada2_mini_goes_through_nine_of_257_experts() -> None:
    spec = PRESETS["llada2-mini"]
    assert spec.experts is not None
    assert spec.experts.token_width == 9 * 512
    assert spec.experts.router_params(2048) == 256 * 2049
    whole = spec.experts.layer_params(2048) - spec.experts.router_params(2048)
    active = spec.experts.layer_params(2048, active_only=True) - 256 * 2049
    assert whole == 257 * 3 * 2048 * 512
    assert active == 9 * 3 * 2048 * 512
