"""An example of each verb that builds or judges a data set, at the end of its help."""

from __future__ import annotations

_DATA = "--corpus data/own/corpus --queries data/own/queries"
_TEST = f"{_DATA} --qrels data/own/qrels/test"

EXAMPLES = {
    "construct": "raydense construct --input questions/ --fill-splits --output data/own",
    "annotate": f"raydense annotate --run bm25=runs/bm25 --run de=runs/de --model models/ce {_TEST} --output annotation",
    "adjudicate": "raydense adjudicate --annotation annotation --judgements answers/ --qrels data/own/qrels/test --output data/test-checked",
    "overlap": "raydense overlap --queries data/own/queries --train data/own/qrels/train --against data/own/qrels/test --output clean",
    "analyse": f"raydense analyse --run runs/de {_TEST} --output errors",
    "perturb": "raydense perturb --queries data/own/queries --kind typo --rate 0.1 --output noisy",
}


def example_of(verb: str) -> str | None:
    """The example as the end of a help has it, on a line that is not wrapped; None for another verb."""
    return f"\b\nExample:\n  {EXAMPLES[verb]}" if verb in EXAMPLES else None
