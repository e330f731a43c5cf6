"""Errors that a job raises deliberately. The command line prints the sentence and exits with 2."""


class PipelineError(Exception):
    """The job cannot continue, or cannot reach a verdict."""


class UsageError(PipelineError):
    """The options of the job contradict each other, its source or its output."""
