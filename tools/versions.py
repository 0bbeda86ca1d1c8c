"""Which ExecuTorch this series is for: the one place that says so."""

DEFAULT = "1.5.1"
SUPPORTED = ("1.4.0", "1.4.1", "1.5.0", "1.5.1")
# Older releases, with the patches that don't fit them. The rest is exported to them with
# `--only`; that it applies and imports is checked, and nothing more is promised.
OLDER = {
    "1.2.0": ("0003", "0005", "0006", "0008", "0009", "0010", "0011", "0091", "0092"),
    "1.3.1": ("0009", "0011", "0091", "0092"),
}
# Raise by one whenever a wheel is given away with other contents than the last.
REVISION = 1


def custom(upstream: str) -> str:
    """The version of the custom wheel: a local version, so that it still satisfies
    ``executorch==<upstream>`` (PEP 440)."""
    return f"{upstream}+mutbuf.{REVISION}"
