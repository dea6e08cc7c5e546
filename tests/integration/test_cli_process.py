"""The command line as a process of its own."""

import subprocess
import sys


def test_help_imports_nothing_heavy():
    code = (
        "import sys, raydense.cli; print([m for m in ('ray', 'torch', 'faiss', 'transformers', 'deepspeed', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_question_to_bm25_imports_no_model():
    code = "import sys, raydense.serving.retriever; print([m for m in ('torch', 'faiss', 'transformers', 'ray.serve') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
