"""The kernels' tests run on the GPU where there is one, else under Triton's interpreter."""

import pytest
import torch

ON_GPU = torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if ON_GPU and "engine/kernels" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def kernel_device() -> torch.device:
    """Where kernels run in this test."""
    return torch.device("cuda" if ON_GPU else "cpu")


@pytest.fixture(scope="session")
def num_repeats() -> int:
    """Runs that must give identical bits."""
    return 100 if ON_GPU else 3


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def kernel_dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Dtypes of a kernel; some versions of the interpreter compute bfloat16 products wrongly."""
    dtype: torch.dtype = request.param
    if dtype is torch.bfloat16 and not ON_GPU:
        pytest.skip("bfloat16 is tested on a GPU")
    return dtype
