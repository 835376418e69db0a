"""A dataset that has a module, for the workers of a DataLoader that are spawned or forked."""

from typing import Any

import torch


class Activations(torch.utils.data.Dataset):  # type: ignore[misc]
    """The activations of one id each, looked up where the dataset is."""

    def __init__(self, module: Any, rows: int) -> None:
        self._module, self._rows = module.eval(), rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> Any:
        return self._module(torch.tensor(index)).clone()
