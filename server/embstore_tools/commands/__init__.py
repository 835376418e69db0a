"""The commands `embstore demo`, `profile`, `size`, `hotset`, `bench`, `report` and `compile`."""
