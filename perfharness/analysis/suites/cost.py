"""Cost of a million items, from the user's prices."""

from __future__ import annotations

from dataclasses import dataclass

ITEMS = 1e6
SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Prices:
    """Prices in any currency; `per_hour` is for the whole machine."""

    per_hour: float | None = None
    per_kwh: float | None = None


@dataclass(frozen=True)
class Cost:
    """Cost of a million items in the currency of the prices; None with a reason if unknown."""

    prices: Prices
    machine: float | None
    machine_reason: str | None
    energy: float | None
    energy_error: float | None
    energy_reason: str | None


def cost(
    prices: Prices, items_per_second: float | None, joules_per_item: float | None, relative_error: float | None
) -> Cost:
    """Rent by the machine's throughput; energy cost by the energy per item of all GPUs, with its relative error."""
    machine = energy = error = None
    if prices.per_hour is not None and items_per_second:
        machine = prices.per_hour / SECONDS_PER_HOUR / items_per_second * ITEMS
    if prices.per_kwh is not None and joules_per_item is not None:
        energy = prices.per_kwh / JOULES_PER_KWH * joules_per_item * ITEMS
        error = None if relative_error is None else energy * relative_error
    return Cost(
        prices=prices,
        machine=machine,
        machine_reason=None if machine is not None else _reason(prices.per_hour, "throughput", "--price-per-hour"),
        energy=energy,
        energy_error=error,
        energy_reason=None if energy is not None else _reason(prices.per_kwh, "energy", "--price-per-kwh"),
    )


def _reason(price: float | None, what: str, option: str) -> str:
    return f"{option} was not given" if price is None else f"the {what} per item was not measured"
