"""The few kinds of error the planner raises. Every message is one sentence or two, the last of which is a
remedy."""


class PlannerError(Exception):
    """Base of all errors a user can provoke; the command line turns it into exit status `exit_status`."""

    exit_status = 2


class InputError(PlannerError):
    """A wrong argument: an unknown chip, a batch that does not divide, a mesh that does not multiply."""


class PinError(InputError):
    """A pin that names nothing, or that cannot hold on the value it names."""


class TraceError(PlannerError):
    """The step cannot be traced to a jaxpr."""


class PlanFileError(PlannerError):
    """A plan file that is corrupt, foreign, or made for another step or machine."""


class CompileError(PlannerError):
    """A planned step that XLA does not compile, most often because it needs more memory than there is."""

    exit_status = 1


class InfeasibleError(PlannerError):
    """No plan fits the memory limit; the message says how many bytes are short and what would make it fit."""

    exit_status = 3
