"""What `doctor` prints of an error, on one line, and of the processor and the allocator of workers."""

import importlib.metadata
import sys
from types import SimpleNamespace

import pytest
import torch

from raydense.cli import doctor
from raydense.cli.doctor import _in_a_line, _processor, _torch
from raydense.runtime import allocator


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
    processor, found = _processor()
    assert processor.state == found.state == "ok"
    assert processor.found.endswith(("bf16", "fp32"))
    assert named in found.found


@pytest.mark.parametrize("folder", ["my project", "a:b"])
def test_a_path_that_the_loader_would_cut_is_not_preloaded_and_noted(folder, tmp_path, monkeypatch):
    """Each worker would log that "/home/me/my" cannot be preloaded."""
    library = tmp_path / folder / "libjemalloc.so"
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr(allocator, "shipped", lambda: library)
    assert allocator.cpu_worker_env() == {}
    _, found = _processor()
    assert (found.state, found.found) == ("note", f"{library} cannot be preloaded, as its path has a blank or a colon")


def test_code_that_is_not_installed_is_a_note(monkeypatch):
    """As in a job whose working directory brings the code, where only the requirements are installed."""

    def none(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requires", none)
    [found] = doctor._packages()
    assert (found.state, found.found) == ("note", "raydense is not installed, so its requirements are not checked")


def test_the_fix_of_packages_names_what_is_lacking(monkeypatch):
    monkeypatch.setattr(doctor, "requires", lambda name: ["ray[serve]>=99", "no-such-package<3,>=2", "numpy>=1", "mteb; extra == 'mteb'"])
    [found] = doctor._packages()
    assert (found.state, found.fix) == ("fault", "pip install 'ray[serve]>=99' 'no-such-package<3,>=2'")


@pytest.mark.parametrize(
    ("capability", "built_for", "state"),
    [
        ((7, 0), ["sm_75", "sm_80", "sm_90", "compute_90"], "fault"),  # the usual builds, on a V100
        ((7, 0), ["sm_70", "sm_80"], "ok"),
        ((8, 9), ["sm_80", "sm_90"], "ok"),
        ((9, 0), ["compute_80"], "ok"),
    ],
)
def test_a_torch_without_kernels_for_the_gpu_is_a_fault(capability, built_for, state, monkeypatch):
    gpu = SimpleNamespace(name="a GPU", major=capability[0], minor=capability[1], total_memory=16 * 2**30)
    here = {"is_available": lambda: True, "device_count": lambda: 1, "get_arch_list": lambda: built_for}
    here |= {"get_device_properties": lambda number: gpu, "mem_get_info": lambda number: (0, 16 * 2**30)}
    for name, function in here.items():
        monkeypatch.setattr(torch.cuda, name, function)
    [found] = _torch()
    assert (found.subject, found.state) == ("gpu 0", state)
    assert found.found.startswith("a GPU")
    assert ("cu126" in found.fix) == (state == "fault")


def test_what_does_not_load_is_a_fault_and_the_rest_is_looked_at(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as one whose library is not there
    monkeypatch.setattr(doctor, "_ray", lambda: iter(()))
    seen = []
    found = doctor.examine(seen.append)
    assert seen == found
    [torch_found] = [one for one in found if one.subject == "torch"]
    assert torch_found.state == "fault"
    assert "torch" in torch_found.found
    assert torch_found.fix.startswith("install it again")
    assert {"python", "processor", "faiss", "compiler", "this folder", "shared memory"} <= {one.subject for one in found}
