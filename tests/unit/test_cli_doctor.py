"""What `doctor` prints of an error, on one line."""

import pytest

from raydense.cli.doctor import _in_a_line


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError(), "TimeoutError"),
        (RuntimeError("\n"), "RuntimeError"),
        (RuntimeError("\nno room\nfor a task"), "no room"),
        (ConnectionError("refused"), "refused"),
    ],
)
def test_an_error_in_a_line_even_if_it_says_nothing(error, said):
    assert _in_a_line(error) == said
