"""Text of the command line to values: meshes, pins, settings, names. Each raises InputError with a remedy."""

from planner.errors import InputError
from planner.sharding import pin
from planner.sharding.spec import Spec, parse

Setting = bool | int | float | str


def parse_mesh(text: str) -> dict[str, int] | None:
    """Axis sizes in order; None when the text is empty.

    >>> parse_mesh("data=4,model=2")
    {'data': 4, 'model': 2}
    """
    mesh: dict[str, int] = {}
    for part in parse_names(text):
        axis, _, size = (piece.strip() for piece in part.partition("="))
        if not axis.isidentifier() or not size.isdecimal() or int(size) < 1:
            raise InputError(f"--mesh has {part!r}, no axis and size. Write it as data=4,model=2.")
        if axis in mesh:
            raise InputError(f"--mesh names the axis {axis!r} twice. Give every axis once.")
        mesh[axis] = int(size)
    return mesh or None


def parse_pins(text: str) -> dict[str, Spec | pin.Pin] | None:
    """Path patterns with the spec that holds there, or the part of it; None when the text is empty.

    >>> parse_pins("state.params.*.w1=P(-, model); batch.inputs=data@0")
    {'state.params.*.w1': ((), ('model',)), 'batch.inputs': Pin(dims=None, on=(('data', 0),), off=())}
    """
    pins: dict[str, Spec | pin.Pin] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        path, _, spec = (piece.strip() for piece in part.rpartition("="))
        try:
            whole = spec.startswith("P(") and spec.endswith(")") and "?" not in spec
            pins[path] = parse(spec) if whole else pin.parse(spec)
        except ValueError:
            path = ""
        if not path:
            raise InputError(f"--pins has {part!r}, no path and spec. Write it as 'batch.x=P(data, -)'.")
    return pins or None


def parse_settings(text: str) -> dict[str, Setting]:
    """Settings of a model: whole numbers, numbers, true and false, and words.

    >>> parse_settings("layers=48,scan=true,learning_rate=1e-3,dtype=bfloat16")
    {'layers': 48, 'scan': True, 'learning_rate': 0.001, 'dtype': 'bfloat16'}
    """
    settings: dict[str, Setting] = {}
    for part in parse_names(text):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        if not name.isidentifier() or not sign or not value:
            raise InputError(f"--set has {part!r}, no setting. Write it as layers=48,batch=64.")
        settings[name] = _value(value)
    return settings


def _value(text: str) -> Setting:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_names(text: str) -> tuple[str, ...]:
    """Names between commas.

    >>> parse_names("data, fsdp,")
    ('data', 'fsdp')
    """
    return tuple(filter(None, (piece.strip() for piece in text.split(","))))
