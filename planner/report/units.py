"""Numbers as people read them. Inside, everything is bytes, seconds and FLOP/s; units appear only here."""

import math

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_DECIMAL = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_BINARY = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


def _digits(number: float) -> str:
    """Three significant digits, without an exponent."""
    if number == 0 or abs(number) >= 100:
        return f"{number:.0f}"
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"


def _scaled(number: float, scales: tuple[tuple[float, str], ...]) -> str:
    # 999.7 us would print as "1000 us"; from 999.5 on, the next unit says it shorter.
    for i, (scale, unit) in enumerate(scales):
        if abs(number) / scale >= 0.9995 or i == len(scales) - 1:
            return f"{_digits(number / scale)} {unit}".rstrip()
    raise AssertionError("scales is empty")


def duration(seconds: float) -> str:
    """Seconds as a time.

    >>> duration(0.0123), duration(2.5e-6), duration(0.0), duration(81.0)
    ('12.3 ms', '2.50 us', '0 s', '81.0 s')
    """
    if seconds == 0:
        return "0 s"
    return _scaled(seconds, _TIMES) if math.isfinite(seconds) else "-"


def memory(size: float) -> str:
    """Bytes that are held, in binary units.

    >>> memory(3 * 2**30), memory(1536), memory(0)
    ('3.00 GiB', '1.50 KiB', '0 B')
    """
    if abs(size) < 1000:
        return f"{size:.0f} B"
    return _scaled(size, _BINARY) if math.isfinite(size) else "none"


def traffic(size: float) -> str:
    """Bytes that are sent, in decimal units, as links are rated.

    >>> traffic(29.4e6), traffic(0)
    ('29.4 MB', '0 B')
    """
    if abs(size) < 1000:
        return f"{size:.0f} B"
    return quantity(size, "B") if math.isfinite(size) else "-"


def quantity(number: float, unit: str) -> str:
    """Any number with an SI prefix.

    >>> quantity(197e12, "FLOP/s"), quantity(819e9, "B/s"), quantity(12, "W")
    ('197 TFLOP/s', '819 GB/s', '12.0 W')
    """
    text = _scaled(number, _DECIMAL)
    digits, _, prefix = text.partition(" ")
    return f"{digits} {prefix}{unit}"
