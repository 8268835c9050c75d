"""What a prediction rests on, and what it leaves out: the last lines of every report."""

from planner.plans import Plan

_OVERLAP = {
    "cpu": "nothing runs beside compute",
    "tpu": "collectives run beside compute where libtpu 0.0.42 makes them so by default",
    "gpu": "every collective may run beside compute, as with XLA's latency hiding scheduler",
}
NOT_MODELLED = (
    "Not modelled: how the compiler orders ops anew, copies that it adds, other programs on the machine. How "
    "far off predictions are is measured by scripts/validate_steps and scripts/validate_cpu."
)


def honesty(plan: Plan) -> list[str]:
    """One line on the constants, one on overlap, one on what is left out."""
    machine, _, file = plan.machine.partition("@")
    if file:
        constants = (
            f"Constants: rates and collectives measured on the devices ({file}), the rest as published"
        )
    elif machine.startswith("cpu:"):
        constants = "Constants: measured on this host with numpy; `meshwright calibrate` measures the devices"
    else:
        constants = "Constants: as published, nothing measured on the devices; `meshwright calibrate` does"
    overlap = _OVERLAP[machine[:3]]
    return [f"{constants}. Overlap: {overlap}.", NOT_MODELLED]
