"""JAX edge: a plan and a traced step become one jitted function with the user's signature.

What keeps the second step from compiling again: every leaf that enters has the planned sharding and a strong
type (numbers, numpy arrays and weakly typed scalars are placed first), and every result leaves strongly typed
under the sharding it was planned with, so the state of step 2 looks exactly like the state of step 1.
"""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from planner.errors import InputError, PlanFileError
from planner.jax_compat import (
    Traced,
    argument_names,
    auto_mesh,
    join,
    leaf_paths,
    named_sharding,
    state_partners,
)
from planner.plans import LeafPlan, Plan
from planner.rewrite import rewrite


def apply(plan: Plan, traced: Traced, mesh: Mesh) -> "ShardedStep":
    """The step `traced`, sharded as `plan` says on the devices of `mesh`; Explicit axes become Auto.

    Raises PlanFileError if the plan was made for another step or mesh.
    """
    if dict(mesh.shape) != dict(plan.mesh):
        raise PlanFileError(
            f"The plan was made for the mesh {dict(plan.mesh)}, not for {dict(mesh.shape)}. "
            f"Give the plan's own mesh, or plan again for this one."
        )
    arguments, results = leaf_paths(traced)
    _check_leaves("argument", plan.arguments, arguments, traced.arguments)
    _check_leaves("result", plan.results, results, traced.results)
    mesh = auto_mesh(mesh)
    places = tuple(named_sharding(mesh, leaf.spec) for leaf in plan.arguments)
    returns = [named_sharding(mesh, leaf.spec) for leaf in plan.results]
    out_shardings = jax.tree.unflatten(traced.out_tree, returns)
    weights, tiled = whole_weights(plan, traced), plan.machine.startswith("tpu_")
    replay = jex.jaxpr_as_fun(rewrite(traced.closed_jaxpr, plan.sites, mesh, weights, tiled))

    def run(*leaves: Any) -> Any:
        return jax.tree.unflatten(traced.out_tree, [_strong(result) for result in replay(*leaves)])

    run.__name__ = run.__qualname__ = getattr(traced.fn, "__name__", "step")
    return ShardedStep(
        plan=plan,
        mesh=mesh,
        in_shardings=jax.tree.unflatten(traced.in_tree, places),
        out_shardings=out_shardings,
        traced=traced,
        _places=places,
        _slots=_slots(traced, arguments),
        _jitted=jax.jit(run, in_shardings=places, out_shardings=out_shardings, donate_argnums=traced.donated),
    )


def whole_weights(plan: Plan, traced: Traced) -> frozenset[tuple[int, ...]]:
    """The shapes of matrices that every device of a TPU keeps whole, with their moments, and the step
    replaces: copies of them in another layout would be as large. None that a split matrix has too, or one of
    a stack: to lay out a part of their gradients makes it whole on every device."""
    if not plan.machine.startswith("tpu_"):
        return frozenset()
    kept = [plan.arguments[index] for index in state_partners(traced)]
    matrices = {leaf.shape for leaf in kept if len(leaf.shape) == 2}
    others = {leaf.shape[-2:] for leaf in kept if any(leaf.spec) or len(leaf.shape) > 2}
    return frozenset(matrices - others)


@dataclasses.dataclass(frozen=True)
class _Slot:
    """One argument of the step: a static value, or the structure and flat indices of its leaves."""

    name: str
    tree: Any = None
    first: int = 0
    paths: tuple[str, ...] = ()
    static: Any = None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ShardedStep:
    """A sharded step. Call it as the step it was made from.

    in_shardings: a tuple with one pytree of NamedShardings per (not static) argument; out_shardings: shaped
    like the result. Donated arguments are deleted by a call, as they are by `jax.jit`.
    """

    plan: Plan
    mesh: Mesh
    in_shardings: Any
    out_shardings: Any
    traced: Traced
    _places: tuple[NamedSharding, ...]
    _slots: tuple[_Slot, ...]
    _jitted: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One step. Leaves that are not yet where the plan keeps them are put there first.

        Raises InputError if an argument has not the structure, shape or dtype the step was planned with.
        """
        if kwargs:
            args = self._positional(args, kwargs)
        if len(args) != len(self._slots):
            names = ", ".join(slot.name for slot in self._slots)
            raise InputError(
                f"The step takes {len(self._slots)} arguments ({names}), but is given {len(args)}. "
                f"Pass what it was planned with."
            )
        leaves = [leaf for slot, arg in zip(self._slots, args, strict=True) for leaf in self._flat(slot, arg)]
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return self._jitted(*leaves)  # inside somebody's jit or eval_shape, where nothing can be placed
        with jax.set_mesh(self.mesh):
            return self._jitted(*self._placed(leaves, 0))

    def put(self, *args: Any, first: int = 0) -> Any:
        """The arguments as the plan keeps them, from argument `first` on; a tuple, unless one is given.

        Takes arrays, numpy arrays and numbers. What is already in place is returned as it is; what the step
        donates is copied, so the caller keeps his own. Raises InputError as a call does.
        """
        if first < 0 or first + len(args) > len(self._slots):
            raise InputError(
                f"put is given {len(args)} arguments from number {first} on, but the step takes "
                f"{len(self._slots)}. Pass at most those it was planned with."
            )
        done: list[Any] = []
        for slot, arg in zip(self._slots[first:], args, strict=False):
            leaves = self._flat(slot, arg)
            placed = arg if slot.tree is None else self._placed(leaves, slot.first)
            done.append(placed if slot.tree is None else jax.tree.unflatten(slot.tree, placed))
        return done[0] if len(done) == 1 else tuple(done)

    def init(self, init_fn: Callable[..., Any], *args: Any) -> Any:
        """`init_fn(*args)`, born sharded: no device ever holds a whole array that the plan splits.

        init_fn returns one argument of the step (the first that fits, usually the state), or a tuple of its
        first arguments. Arguments without arrays (a config) stay Python values. Raises InputError if nothing
        fits.
        """
        traced = [index for index, arg in enumerate(args) if any(map(_is_array, jax.tree.leaves(arg)))]

        def make(*arrays: Any) -> Any:
            given = dict(zip(traced, arrays, strict=True))
            made = init_fn(*[given.get(index, arg) for index, arg in enumerate(args)])
            return jax.tree.map(lambda leaf: _strong(jnp.asarray(leaf)), made)

        whole = NamedSharding(self.mesh, PartitionSpec())
        with jax.set_mesh(self.mesh):
            arrays = jax.device_put([args[index] for index in traced], whole)
            out_shardings = self._shardings_for(jax.eval_shape(make, *arrays))
            return jax.jit(make, out_shardings=out_shardings)(*arrays)

    def lower(self, *args: Any) -> Any:
        """The lowered step, to read or compile; arguments are only checked, and may be left out."""
        for slot, arg in zip(self._slots, args, strict=False):
            self._flat(slot, arg)
        with jax.set_mesh(self.mesh):
            return self._jitted.lower(*jax.tree.leaves(self.abstract()))

    def abstract(self) -> Any:
        """The arguments as ShapeDtypeStructs with their shardings: what a checkpoint is restored into."""
        structs = [
            jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=place)
            for struct, place in zip(self.traced.arguments, self._places, strict=True)
        ]
        return jax.tree.unflatten(self.traced.in_tree, structs)

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        try:
            bound = inspect.signature(self.traced.fn).bind(*args, **kwargs)
        except TypeError as error:
            raise InputError(
                f"The step has other arguments: {error}. Pass what it was planned with."
            ) from error
        return bound.args

    def _flat(self, slot: _Slot, arg: Any) -> list[Any]:
        """The leaves of one argument, checked against what the step was planned with."""
        if slot.tree is None and _equal(arg, slot.static):
            return []
        if slot.tree is None:
            raise InputError(
                f"The step was planned with {slot.name} = {slot.static!r} as part of the program, "
                f"but is given {arg!r}. Plan again for this value."
            )
        difference = self._difference(slot, arg)
        if difference:
            raise InputError(
                f"The step does not take this {slot.name}: {difference}. "
                f"Pass what it was planned with, or plan again for this {slot.name}."
            )
        return jax.tree.leaves(arg)

    def _difference(self, slot: _Slot, arg: Any) -> str:
        """How an argument differs from what was planned; '' if it does not."""
        leaves, tree = jax.tree.flatten(arg)
        if tree != slot.tree:
            return _other_tree(slot, arg)
        for path, leaf, struct in zip(slot.paths, leaves, self.traced.arguments[slot.first :], strict=False):
            if not _fits(leaf, struct):
                return f"{path} is {_show(leaf)} where {_show(struct)} was planned"
        return ""

    def _placed(self, leaves: Sequence[Any], first: int) -> list[Any]:
        """Leaves from flat index `first` on, strongly typed and where the plan keeps them."""
        placed = list(leaves)
        wanted = [n for n, leaf in enumerate(leaves) if not _is_placed(leaf, self._places[first + n])]
        if wanted:
            places = [self._places[first + n] for n in wanted]
            given_up = set(self.traced.donated)
            donated = [first + n in given_up for n in wanted]
            plain = [_plain(leaves[n], self.traced.arguments[first + n]) for n in wanted]
            own = [_unshared(*three) for three in zip(plain, places, donated, strict=True)]
            moved = jax.device_put(own, places, may_alias=[False if gone else None for gone in donated])
            for n, leaf in zip(wanted, moved, strict=True):
                placed[n] = leaf
        return placed

    def _shardings_for(self, made: Any) -> Any:
        """The shardings of the argument, or of the first arguments, that look like `made`."""
        dynamic = [slot for slot in self._slots if slot.tree is not None]
        for slot, shardings in zip(dynamic, self.in_shardings, strict=True):
            if not self._difference(slot, made):
                return shardings
        if isinstance(made, tuple) and 0 < len(made) <= len(dynamic):
            pairs = zip(dynamic, made, strict=False)
            if not any(self._difference(slot, part) for slot, part in pairs):
                return self.in_shardings[: len(made)]
        raise InputError(
            f"The function given to init does not return the step's {dynamic[0].name}: "
            f"{self._difference(dynamic[0], made)}. Return it whole, as the step takes it."
        )


def _slots(traced: Traced, paths: Sequence[str]) -> tuple[_Slot, ...]:
    statics = dict(traced.statics)
    trees = list(traced.in_tree.children())
    slots: list[_Slot] = []
    first = 0
    for position, name in enumerate(argument_names(traced.fn, len(trees) + len(statics))):
        if position in statics:
            slots.append(_Slot(name, static=statics[position]))
            continue
        tree = trees.pop(0)
        stop = first + tree.num_leaves
        slots.append(_Slot(name, tree, first, tuple(paths[first:stop])))
        first = stop
    return tuple(slots)


def _check_leaves(
    what: str, planned: Sequence[LeafPlan], paths: Sequence[str], structs: Sequence[jax.ShapeDtypeStruct]
) -> None:
    """The plan's arguments or results must be those of the step."""
    if len(planned) != len(paths):
        raise PlanFileError(
            f"The plan has {len(planned)} {what} leaves, but the step has {len(paths)}. "
            f"Plan again for this step."
        )
    for leaf, path, struct in zip(planned, paths, structs, strict=True):
        if leaf.path != path or leaf.shape != struct.shape or leaf.dtype != str(struct.dtype):
            was = f"{leaf.path} of {leaf.dtype}{list(leaf.shape)}"
            raise PlanFileError(
                f"The plan has the {what} {was} where the step has {path} of {_show(struct)}. "
                f"Plan again for this step."
            )


def _other_tree(slot: _Slot, arg: Any) -> str:
    """Names the first leaf that is missing or too many."""
    given = [join(slot.name, path) for path, _ in jax.tree.leaves_with_path(arg)]
    missing = [path for path in slot.paths if path not in set(given)]
    extra = [path for path in given if path not in set(slot.paths)]
    if missing:
        return f"{missing[0]} is missing"
    if extra:
        return f"{extra[0]} was not planned"
    return "its containers are not the planned ones"


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _is_placed(leaf: Any, place: NamedSharding) -> bool:
    return (
        isinstance(leaf, jax.Array) and leaf.sharding == place and not getattr(leaf.aval, "weak_type", False)
    )


def _fits(leaf: Any, struct: jax.ShapeDtypeStruct) -> bool:
    """Whether a leaf may stand for `struct` without a change of value: numbers adapt, arrays do not."""
    if isinstance(leaf, (bool, int, float, complex)):
        return struct.shape == () and _promotes(leaf, struct.dtype)
    if not _is_array(leaf) or tuple(leaf.shape) != struct.shape:
        return False
    return leaf.dtype == struct.dtype or (
        isinstance(leaf, (np.ndarray, np.generic))
        and jax.dtypes.canonicalize_dtype(leaf.dtype) == struct.dtype
    )


def _promotes(number: Any, dtype: Any) -> bool:
    return not jnp.issubdtype(dtype, jax.dtypes.extended) and jnp.result_type(number, dtype) == dtype


def _plain(leaf: Any, struct: jax.ShapeDtypeStruct) -> Any:
    """What device_put turns into a strongly typed array of the planned dtype."""
    if isinstance(leaf, jax.Array) and not getattr(leaf.aval, "weak_type", False):
        return leaf
    return np.asarray(leaf).astype(struct.dtype, copy=False)


def _unshared(leaf: Any, place: NamedSharding, donated: bool) -> Any:
    """A copy of the caller's array where device_put would hand on a shard of it, which a donation deletes."""
    if not donated or not isinstance(leaf, jax.Array):
        return leaf
    reused = leaf.sharding.shard_shape(leaf.shape) == place.shard_shape(leaf.shape)
    return jnp.copy(leaf) if reused else leaf


def _strong(array: Any) -> Any:
    weak = getattr(jax.typeof(array), "weak_type", False)
    return jax.lax.convert_element_type(array, array.dtype) if weak else array


def _equal(given: Any, static: Any) -> bool:
    return given is static or (type(given) is type(static) and bool(given == static))


def _show(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}" if _is_array(leaf) else f"a {type(leaf).__name__}"
