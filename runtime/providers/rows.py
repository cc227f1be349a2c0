"""How many rows a call may have on a provider whose attention goes wrong with many."""

from dataclasses import replace

from runtime.providers.devices import device_of
from runtime.providers.place import Place
from runtime.providers.table import PROVIDERS, as_place


def most_rows(name: str | Place) -> int | None:
    """The most rows of one call that attention over a cache computes right; None: any number."""
    place = as_place(name)
    return None if place.wide else PROVIDERS[place.provider].safe_rows


def widened(place: Place) -> Place | None:
    """The place for calls of any width, where these may be right: on a device that is real.

    None where software plays the device, and where calls have any width anyway.
    """
    if most_rows(place) is None or device_of(place).emulated:
        return None
    return replace(place, wide=True)
