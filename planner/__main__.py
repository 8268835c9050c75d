"""Plans how to shard a JAX train step: `python -m planner COMMAND --flags`, or `meshwright COMMAND --flags`.

  plan      the best plan for a step on a machine        --model=gpt --config=gpt2_small --machine=tpu_v5e:4x4
  compare   that plan beside the named schemes           the same flags
  train     run the plan on real data, and time it       --model=gpt --config=tiny --machine=cpu:8 --steps=30
  verify    compile the planned step, and compare        the flags of plan, or a step and --plan=plan.json
  show      a saved plan, or one value of it             plan.json --value='state.params.*'
  diff      what changes from one saved plan to another  old.json new.json
  solve     a problem of the sharding contest's format   --problem=file.json.gz --seconds=60 --json=out.json
  calibrate measure this host's devices, for --machine    --machine=cpu:8 --out=machine.json
  machines  the machines there are, with their sources   or one of them: --machine=gpu_h100_sxm_80gb:2x8

Exit status: 0 done; 1 when the compiled program is not as planned (verify); 2 bad input, said in one
sentence; 3 when nothing fits the memory; 130 when interrupted.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

from absl import flags

import planner
from planner import arguments
from planner.clock import age_of_process
from planner.errors import InputError, PlannerError

_FLAGS = (  # name, kind, default, what it is; sorted by name
    ("beside", "string", "", "train: schemes to run as well, to compare with: data,fsdp"),
    ("config", "string", "", "config of --model; its smallest when left out"),
    ("help", "boolean", False, "this text"),
    ("json", "string", "", "file to write the result to as JSON"),
    ("machine", "string", "", "machine to plan for, like tpu_v5e:4x4; this host's devices when left out"),
    ("memory_fraction", "float", 0.9, "part of the device memory that a plan may use"),
    ("mesh", "string", "", "fix the logical mesh: data=4,model=2"),
    ("model", "string", "", "a model of models/, like gpt, llama, moe or resnet"),
    ("out", "string", "", "file to save the plan to, for show, diff and --plan; calibrate: the machine's"),
    ("pins", "string", "", "specs to hold: 'batch.*=P(data, -);state.params.*.w1=P(-, model)'"),
    ("plan", "string", "", "train, verify: take this saved plan instead of making one"),
    ("problem", "string", "", "solve: the file of the problem, .json or .json.gz"),
    ("save-problem", "string", "", "plan: file to save the final mesh's problem to, for solve"),
    ("schemes", "string", "", "stay inside these named schemes: fsdp,tensor_1d"),
    ("seconds", "float", 10.0, "time limit of the search; of solve as a whole"),
    ("seed", "integer", 0, "seed of the search, the parameters and the data"),
    ("set", "string", "", "settings of --model: layers=48,batch=64,scan=true,remat=true"),
    ("solver", "string", "auto", "auto, elimination, ilp; solve: mcmc and search as well"),
    ("step", "string", "", "your own step: package.module:function"),
    ("steps", "integer", 30, "train: how many steps"),
    ("trace", "string", "", "plan: file to write the timeline to, for https://ui.perfetto.dev"),
    ("value", "string", "", "show: explain the values of this path; * stands for any text"),
)


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns the exit status. argv: program name and arguments, sys.argv if None."""
    began = time.monotonic() - (age_of_process() if argv is None else 0.0)
    try:
        return _run(sys.argv if argv is None else argv, began)
    except PlannerError as error:
        print(f"meshwright: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("meshwright: interrupted; nothing more was written.", file=sys.stderr)
        return 130


def _run(argv: list[str], began: float) -> int:
    values = _flags()
    try:
        words = values(argv)[1:]
    except flags.Error as error:
        raise InputError(f"{str(error).rstrip(' ?.')}. See `python -m planner --help`.") from error
    if values.help or not words:
        print(_usage(values))
        return 0 if values.help else 2
    command = _COMMANDS.get(words[0])
    if command is None:
        raise InputError(f"There is no command {words[0]!r}; choose one of {', '.join(_COMMANDS)}.")
    result = _solve(values, words[1:], began) if command is _solve else command(values, words[1:])
    if values.json:
        from planner.storage import write_json

        write_json(values.json, result)
    return int(command is _verify and not result["holds"])


def _flags() -> flags.FlagValues:
    values = flags.FlagValues()  # our own, because jax and absl define flags of theirs in the global one
    define: dict[str, Callable[..., Any]] = {
        "boolean": flags.DEFINE_boolean,
        "float": flags.DEFINE_float,
        "integer": flags.DEFINE_integer,
        "string": flags.DEFINE_string,
    }
    for name, kind, default, text in _FLAGS:
        define[kind](name, default, text, flag_values=values)
    return values


def _usage(values: flags.FlagValues) -> str:
    rows = (f"  --{name:<17}{values[name].help}" for name, *_ in _FLAGS)
    return "\n".join([(__doc__ or "").rstrip(), "", "Flags:", *rows])


def _job(values: flags.FlagValues) -> Any:
    from planner.jobs import model_job, step_job

    if bool(values.model) == bool(values.step):
        raise InputError("Say what to plan: either --model=gpt, or --step=package.module:function.")
    if values.step:
        if values.set or values.config:
            raise InputError("--set and --config belong to --model; write the settings into your own step.")
        return step_job(values.step)
    return model_job(values.model, values.config, arguments.parse_settings(values.set))


def _choices(values: flags.FlagValues) -> dict[str, Any]:
    """The keywords that plan, compare and plan_and_shard share."""
    return {
        "machine": values.machine or None,
        "mesh": arguments.parse_mesh(values.mesh),
        "pins": arguments.parse_pins(values.pins),
        "schemes": arguments.parse_names(values.schemes) or None,
        "memory_fraction": values.memory_fraction,
        "solver": values.solver,
        "seconds": values.seconds,
        "seed": values.seed,
    }


def _no_words(words: list[str]) -> None:
    if words:
        raise InputError(f"{words[0]!r} is no flag. Write flags as --name=value.")


def _print(renderable: Any) -> None:
    from planner.report.tables import console

    console().print(renderable)


def _planned(verb: str, values: flags.FlagValues, words: list[str]) -> Any:
    """The plan that `verb`, plan or compare, makes of what the flags say; saved where they say so."""
    _no_words(words)
    choices, job = _choices(values), _job(values)
    if values["save-problem"].value:
        choices["problem_file"] = values["save-problem"].value
    return _plan_for(job, choices, verb, values.out)


def _plan_for(job: Any, choices: dict[str, Any], verb: str, out: str) -> Any:
    from planner.progress import planning_bar

    with planning_bar() as progress:
        plan = getattr(planner, verb)(job.step, *job.args, progress=progress, **choices)
    if out:
        plan.save(out)
    return plan


def _plan(values: flags.FlagValues, words: list[str]) -> Any:
    from planner.plans import as_json

    plan = _planned("plan", values, words)
    if values.trace:
        from planner.report.perfetto import trace
        from planner.storage import write_json

        write_json(values.trace, trace(plan))
    _print(plan.table())
    return as_json(plan)


def _compare(values: flags.FlagValues, words: list[str]) -> Any:
    from planner.plans import as_json
    from planner.report.tables import comparison_table

    plan = _planned("compare", values, words)
    _print(comparison_table(plan))
    return as_json(plan)


def _show(values: flags.FlagValues, words: list[str]) -> Any:
    from planner.plans import as_json, load
    from planner.report.tables import paragraph

    if len(words) != 1:
        raise InputError("show takes one plan file. Write it as `python -m planner show plan.json`.")
    plan = load(words[0])
    _print(paragraph([plan.explain(values.value)]) if values.value else plan.table())
    return as_json(plan)


def _diff(values: flags.FlagValues, words: list[str]) -> Any:
    from planner.plans import load
    from planner.report.tables import paragraph

    if len(words) != 2:
        raise InputError("diff takes two plan files. Write it as `python -m planner diff old.json new.json`.")
    text = load(words[0]).diff(load(words[1]))
    _print(paragraph([text or "The two plans are the same."]))
    return text.splitlines()


def _verify(values: flags.FlagValues, words: list[str]) -> Any:
    from meshes.machine import cpu_devices, load_machine
    from planner.compiled import devices_of, expect_tpu
    from planner.plans import load
    from planner.report.verification import as_json
    from planner.training import use_cpu_devices

    _no_words(words)
    plan = load(values.plan) if values.plan else None
    machine = plan.machine if plan else values.machine
    if plan and values.machine and load_machine(values.machine).name != machine:
        raise InputError(
            f"{values.plan} is a plan for {machine}, and --machine is {values.machine}. Leave --machine out, "
            "or leave --plan out to plan for it."
        )
    if cpu_devices(machine):
        use_cpu_devices(cpu_devices(machine))
    expect_tpu(machine)
    choices, job = _choices(values), _job(values)
    if machine:
        devices_of(load_machine(machine))  # before a search for a plan that could not be compiled here
    plan = plan or _plan_for(job, choices, "plan", values.out)
    found = planner.verify(plan, job.step, *job.args)
    _print(found.table())
    return as_json(found)


def _machines(values: flags.FlagValues, words: list[str]) -> Any:
    from planner.report.machines import machine_json, machine_table

    _no_words(words)
    _print(machine_table(values.machine))
    return machine_json(values.machine)


def _calibrate(values: flags.FlagValues, words: list[str]) -> Any:
    from meshes.calibrate import calibrate
    from meshes.devices import machine_of_process
    from meshes.machine import cpu_devices, load_machine
    from meshes.machine_file import as_json
    from planner.progress import planning_bar
    from planner.report.machines import machine_table
    from planner.storage import write_json
    from planner.training import use_cpu_devices

    _no_words(words)
    if not values.out.endswith(".json"):
        raise InputError("Say where to keep what is measured: --out=machine.json.")
    if count := cpu_devices(values.machine):
        use_cpu_devices(count)
    machine = load_machine(values.machine) if values.machine else machine_of_process()
    with planning_bar() as progress:
        found = as_json(calibrate(machine, progress))
    write_json(values.out, found)
    _print(machine_table(values.out))
    return found


def _solve(values: flags.FlagValues, words: list[str], began: float | None = None) -> Any:
    from planner.solve_command import infeasible, solve_file, solved_table
    from planner.storage import write_json

    _no_words(words)
    if not values.problem:
        raise InputError("Say what to solve: --problem=file.json, or .json.gz.")
    limits = {"seconds": values.seconds, "seed": values.seed, "began": began}
    solved = solve_file(values.problem, solver=values.solver, **limits)
    _print(solved_table(solved))
    if not solved.feasible:
        if values.json:
            write_json(values.json, solved.as_json())
        raise infeasible(solved)
    return solved.as_json()


def _train(values: flags.FlagValues, words: list[str]) -> Any:
    from planner.train_command import train

    _no_words(words)
    if values.steps < 2:
        raise InputError(f"--steps is {values.steps}; the first step compiles, so give 2 or more.")
    return train(
        lambda: _job(values),
        _choices(values),
        plan_file=values.plan,
        beside=arguments.parse_names(values.beside),
        steps=values.steps,
        out=values.out,
    )


_COMMANDS: dict[str, Callable[[flags.FlagValues, list[str]], Any]] = {
    "calibrate": _calibrate,
    "compare": _compare,
    "diff": _diff,
    "machines": _machines,
    "plan": _plan,
    "show": _show,
    "solve": _solve,
    "train": _train,
    "verify": _verify,
}

if __name__ == "__main__":
    sys.exit(main())
