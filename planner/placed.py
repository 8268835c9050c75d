"""JAX edge: the shardings that a user's arrays have already, as pins.

Three things say how an array is meant to lie: a NamedSharding on the array or its shape, flax linen's
partitioning metadata (`nn.with_partitioning`, `nn.with_logical_partitioning`), and flax nnx' variables with
sharding metadata. They are told by what they have, so nothing here imports flax.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from planner.errors import InputError
from planner.jax_compat import argument_names, join, plain_pins
from planner.sharding.spec import Spec

Rules = Sequence[tuple[str, str | Sequence[str] | None]]
_NNX_NAMES = ("out_sharding", "sharding_names", "sharding")  # of the metadata, in the order of flax' versions


def pins_of(
    train_step: Callable[..., Any], *args: Any, rules: Rules | Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Pins for `plan(train_step, *args)` that keep every sharding that the arguments have already.

    rules: logical axis name -> mesh axes, as flax takes them: the first rule counts whose axes are still free
    in the spec; a logical name without a rule splits nothing. Names of `nn.with_partitioning` and of nnx that
    no rule has are mesh axes. Arrays that are placed whole on a device say nothing. The mesh is not part of a
    pin: give it too (`mesh=`). Raises InputError for logical names without any rules.
    """
    pairs = list(rules.items() if isinstance(rules, Mapping) else rules or ())
    names = argument_names(train_step, len(args))
    return plain_pins(
        {
            path.replace("[", "[[]"): spec
            for name, arg in zip(names, args, strict=True)
            for path, spec in _specs(name, arg, pairs)
        }
    )


def _specs(name: str, arg: Any, rules: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree.leaves_with_path(arg, is_leaf=_is_box):
        if _is_box(leaf):
            named, logical, own = _names(leaf)
            for below, _ in jax.tree.leaves_with_path(leaf) if named is not None else ():
                at = join(name, (*path, *below))
                if logical and not (rules or own):
                    raise InputError(
                        f"{at} has the logical axes {', '.join(map(str, named or ()))}, which are no mesh "
                        "axes. Say what they mean with rules=, like [('embed', None), ('mlp', 'model')]."
                    )
                yield at, _mapped(named or (), rules or own, logical)
        elif isinstance(getattr(leaf, "sharding", None), NamedSharding):
            yield join(name, path), leaf.sharding


def _is_box(leaf: Any) -> bool:
    """Whether this is a container of one array that says how the array is to be split."""
    return hasattr(leaf, "get_partition_spec") or hasattr(leaf, "get_metadata")


def _names(box: Any) -> tuple[Sequence[Any] | None, bool, list[tuple[str, Any]]]:
    """The axis name of each dim (None if the box has none), whether they are logical, and its own rules."""
    if hasattr(box, "get_partition_spec"):
        return box.names, hasattr(box, "rules"), list(getattr(box, "rules", None) or ())
    metadata = box.get_metadata()
    found = next((metadata[key] for key in _NNX_NAMES if metadata.get(key) is not None), None)
    found = tuple(found.spec) if isinstance(found, NamedSharding) else found
    return found, False, list(metadata.get("sharding_rules") or ())


def _mapped(names: Sequence[Any], rules: list[tuple[str, Any]], logical: bool) -> Spec:
    """The spec that logical names stand for."""
    taken: set[str] = set()
    spec = []
    for name in names:
        axes: tuple[str, ...] = ()
        for one in (name,) if isinstance(name, str) else tuple(name or ()):
            axes += _axes(one, rules, logical, taken)
            taken.update(axes)
        spec.append(axes)
    return tuple(spec)


def _axes(name: str, rules: list[tuple[str, Any]], logical: bool, taken: set[str]) -> tuple[str, ...]:
    mine = [(axes,) if isinstance(axes, str) else tuple(axes or ()) for key, axes in rules if key == name]
    if not mine and not logical:
        return (name,)
    return next((axes for axes in mine if not taken.intersection(axes)), ())
