"""Windows that slide along a dim: which tiles of what they read and make belong together.

Place p of the result reads place p * stride + w * dilation - low of the array, whose elements stand `holes`
apart, for each place w of the window. Where the array is as long as the steps of the result, a tile of either
is worked on with a tile of the other and a few rows around it: its halo. Splitting the window instead, where
it is the long one, is the same with p and w exchanged: that is the gradient of a convolution's filter.

    array x as long as stride * p      (x s), w! -> x      a convolution, forward
    result p as long as holes * x      x, w! -> (x s)      the gradient of its input
    array x as long as dilation * w    (x s), x -> p!      the gradient of its filter

With another length (no padding, say) the tiles' borders would not fall together, and the dim stays whole.
"""

import dataclasses

from planner.rules.entry import Name


@dataclasses.dataclass(frozen=True)
class Slide:
    """The factors of one dim. array, window, result: of each. sizes: of the factors that stand behind another
    one. whole: those that stay whole. halo: rows of the array before a tile, and after it. along: what the
    array is split with, 'result' or 'window', '' if neither or if it is no more than a matmul."""

    array: Name
    window: Name
    result: Name
    sizes: tuple[tuple[str, int], ...] = ()
    whole: tuple[str, ...] = ()
    halo: tuple[int, int] = (0, 0)
    along: str = ""


def slide(
    mark: str,
    array: int,
    window: int,
    result: int,
    *,
    stride: int = 1,
    low: int = 0,
    holes: int = 1,
    dilation: int = 1,
) -> Slide:
    """The factors of a dim of these extents. mark: what they end in, to tell dims apart."""
    x, w, y, s = f"x{mark}", f"w{mark}", f"y{mark}", f"s{mark}"
    reach = (window - 1) * dilation + 1
    along_window = holes == 1 and array == dilation * window
    moving = "result" if window * stride * holes > 1 else ""
    along_result = array * holes == stride * result and 1 in (stride, holes)
    if along_result and holes == 1 and not (along_window and window > result):
        tile, sizes = _tile(x, s, stride)
        return Slide(tile, w, x, sizes, (w,), _rows(low, reach - stride - low), moving)
    if along_result and holes > 1:
        tile, sizes = _tile(x, s, holes)
        return Slide(x, w, tile, sizes, (w,), _rows(low // holes, (reach - 2 - low) // holes + 1), moving)
    if along_window:
        tile, sizes = _tile(x, s, dilation)
        moving = "window" if result * dilation > 1 else ""
        return Slide(tile, x, y, sizes, (y,), _rows(low, (result - 1) * stride + 1 - dilation - low), moving)
    return Slide(x, w, y, (), (x, w, y))


def _tile(major: str, minor: str, times: int) -> tuple[Name, tuple[tuple[str, int], ...]]:
    """A dim that is `times` as long as factor `major`."""
    return ((major, minor), ((minor, times),)) if times > 1 else (major, ())


def _rows(before: int, after: int) -> tuple[int, int]:
    return max(0, before), max(0, after)
