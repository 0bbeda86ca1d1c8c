"""Which ExecuTorch this series is for: the one place that says so."""

DEFAULT = "1.5.1"
SUPPORTED = ("1.4.0", "1.4.1", "1.5.0", "1.5.1")
# Raise by one whenever a wheel is given away with other contents than the last.
REVISION = 1


def custom(upstream: str) -> str:
    """The version of the custom wheel: a local version, so that it still satisfies
    ``executorch==<upstream>`` (PEP 440)."""
    return f"{upstream}+mutbuf.{REVISION}"
