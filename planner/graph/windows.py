"""Windows that slide over one spatial dim, as convolutions have them."""

import numpy as np


def meetings(
    extent: int,
    window: int,
    outputs: int,
    *,
    stride: int = 1,
    low: int = 0,
    holes: int = 1,
    dilation: int = 1,
) -> int:
    """Pairs of an output position and a window position that meet an element of the input: neither padding
    nor a hole of a dilated input. Only these are multiplied, and XLA counts only these.

    extent, window, outputs: positions of the input, the window and the output. low: padding before the
    input, cut off where it is negative. holes, dilation: steps between elements of the input and the window.

    >>> meetings(5, 3, 5, low=1)  # two of the 15 meet padding
    13
    """
    steps = np.arange(outputs)[:, None] * stride - low + np.arange(window)[None, :] * dilation
    inside = (steps >= 0) & (steps < (extent - 1) * holes + 1) & (steps % holes == 0)
    return int(inside.sum())
