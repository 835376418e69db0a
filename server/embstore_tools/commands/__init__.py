"""The commands `embstore demo`, `profile`, `size`, `hotset` and `bench`."""
