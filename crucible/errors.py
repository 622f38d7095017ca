"""Errors that a user can act on: one sentence with the value, the limit and the way out."""


class CrucibleError(Exception):
    """Base of every error that Crucible raises on purpose; the CLI prints it as one line and exits 2."""


class InputError(CrucibleError, ValueError):
    """A value from outside breaks a rule; the message names the value, the rule and what to do."""


class ContextError(InputError):
    """A prompt, or a prompt and the tokens asked for, is longer than the model's context."""


class UnsupportedError(CrucibleError):
    """Well-formed input outside what this version covers; the message names the tensor, key or shape."""


class UnavailableError(CrucibleError, RuntimeError):
    """This machine lacks a compiler, driver, file or network; the message says what would provide it."""


class NoKernelError(UnsupportedError):
    """A device has no kernel for an operation yet; callers may report it, never replace it in silence."""

    def __init__(self, operation: str, device: str, where: str = "cpu"):
        self.operation, self.device, self.where = operation, device, where
        super().__init__(f"no kernel yet for {operation} on device {device}; use --device {where}")

    def __reduce__(self) -> tuple:  # a worker process sends it back as it was made
        return NoKernelError, (self.operation, self.device, self.where)
