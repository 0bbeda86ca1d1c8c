"""What is tested is the installed package: say at once if it isn't what this checkout renders."""

import pytest

from tools.errors import UserError
from tools.shipping.installed import differences


def pytest_sessionstart(session: pytest.Session) -> None:
    try:
        different = differences()
    except UserError as error:
        pytest.exit(str(error), returncode=2)
    if different:
        pytest.exit(
            "the installed executorch is not what this checkout renders; run `make dev`. "
            f"It differs in {', '.join(different)}",
            returncode=2,
        )
