"""What a job raises on purpose; the command line turns it into one sentence and an exit code."""


class PipelineError(Exception):
    """The job cannot go on, or cannot judge: exit code 2."""


class UsageError(PipelineError):
    """The job was told something that makes no sense."""
