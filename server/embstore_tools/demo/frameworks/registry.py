"""The frameworks, and the packages of each. Importing this module loads no framework."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from embstore.config import TableConfig
from embstore.errors import InvalidArgumentError
from embstore.version import pip_install
from embstore_tools.demo.frameworks.learner import Learner

if TYPE_CHECKING:
    from embstore.handles.store import Store

PACKAGES = {"numpy": (), "torch": ("torch",)}
"""The packages that each framework needs; the extra with its name installs them."""


def check_installed(framework: str) -> None:
    """Raise InvalidArgumentError, with the installation command, if a framework is missing."""
    missing = [package for package in PACKAGES[framework] if find_spec(package) is None]
    if missing:
        raise InvalidArgumentError(
            f"expected {missing[0]}, which --framework {framework} needs, found none: "
            f"{pip_install(framework)}"
        )


def learner_of(
    framework: str,
    store: "Store",
    configs: list[TableConfig],
    *,
    seed: int = 0,
    device: str = "cpu",
) -> Learner:
    """Return a new learner over tables that exist in the store. `device` is a device of Torch."""
    match framework:
        case "torch":
            from embstore_tools.demo.frameworks.torch_learner import TorchLearner

            return TorchLearner(store, configs, seed=seed, device=device)
    from embstore_tools.demo.frameworks.numpy_learner import NumpyLearner

    return NumpyLearner(configs, seed=seed)
