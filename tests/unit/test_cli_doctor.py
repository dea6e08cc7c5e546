"""What `doctor` prints of an error, on one line, and of the processor and the allocator of workers."""

import importlib.metadata

import pytest

from raydense.cli import doctor
from raydense.cli.doctor import _in_a_line, _processor


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


@pytest.mark.parametrize(
    ("preload", "named"), [(None, "core/libjemalloc.so"), ("/lib/libtcmalloc.so", "/lib/libtcmalloc.so"), ("", "that of the system")]
)
def test_the_processor_and_the_allocator_of_workers(preload, named, monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    if preload is not None:
        monkeypatch.setenv("LD_PRELOAD", preload)
    processor, allocator = _processor()
    assert processor.state == allocator.state == "ok"
    assert processor.found.endswith(("bf16", "fp32"))
    assert named in allocator.found


def test_code_that_is_not_installed_is_a_note(monkeypatch):
    """As in a job whose working directory brings the code, where only the requirements are installed."""

    def none(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requires", none)
    [found] = doctor._packages()
    assert (found.state, found.found) == ("note", "raydense is not installed, so its requirements are not checked")
