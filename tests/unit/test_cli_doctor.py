"""What `doctor` prints of an error, on one line."""

import pytest

from raydense.cli.doctor import _in_a_line


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (TimeoutError(), "TimeoutError"),
        (RuntimeError("\n"), "RuntimeError"),
        (RuntimeError("\nno room\nfor a task"), "no room"),
        (ConnectionError("refused"), "refused"),
    ],
)
def test_an_error_in_a_line_even_without_a_message(error, message):
    assert _in_a_line(error) == message
