"""A format of a user, given as `package.module:Class` or by an entry point of an installed package: it is read, written and found as raydense's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import raydense as rd
from raydense.data.store import PassageStore
from raydense.errors import InputError
from raydense.forecast import Known
from raydense.storage import provenance, read_manifest

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
LINES = "1\tHow long is the warranty?\tTwo years.\n2\tMay I return it?\tWithin 30 days.\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's modules and data."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "faq.tsv").write_text(LINES)
    return tmp_path


def code_of_the_page() -> str:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]


def put(folder: Path, name: str, code: str) -> str:
    """The class `Faq` of a new module of this code."""
    (folder / f"{name}.py").write_text(code)
    return f"{name}:Faq"


def imported(folder: Path, format: str, output: str = "data", **more: Any) -> Path:
    return rd.import_dataset(rd.ImportSettings(format=format, input=str(folder / "faq.tsv"), output=str(folder / output), **more)).path


def test_the_example_of_the_page(folder: Path) -> None:
    format = put(folder, "faq_page", code_of_the_page())
    made = imported(folder, format)
    assert PassageStore(made / "corpus").slice(0, 2, ["passage_id", "text"]).to_pylist() == [
        {"passage_id": "1", "text": "Two years."},
        {"passage_id": "2", "text": "Within 30 days."},
    ]
    assert pq.read_table(made / "queries/queries.parquet").to_pylist()[0] == {"query_id": "1", "text": "How long is the warranty?"}
    assert pq.read_table(made / "qrels/train/qrels.parquet")["relevance"].to_pylist() == [1, 1]
    alone = rd.import_corpus(format, folder / "faq.tsv", folder / "alone")
    assert alone.rows == 2
    written = rd.export(rd.ExportSettings(format=format, dataset=made, output=folder / "again.tsv"))
    assert Path(str(written)).read_text() == LINES


def test_its_writer_reads_the_settings_of_an_export(folder: Path) -> None:
    says = "class Faq:\n    def write(self, outlet):\n        said = outlet.settings\n        outlet.path.write_text(f'{said.tag} {said.license}')\n"
    data = imported(folder, put(folder, "faq_data", code_of_the_page()))
    asked = rd.ExportSettings(format=put(folder, "faq_says", says), dataset=data, output=folder / "said", tag="mine", license="mit")
    assert Path(str(rd.export(asked))).read_text() == "mine mit"


def test_an_installed_package_gives_its_format_a_name(folder: Path) -> None:
    put(folder, "faq_installed", code_of_the_page())
    info = folder / "faq_installed-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faq-installed\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[raydense.formats]\nhelp-desk = faq_installed:Faq\n")
    made = imported(folder, "help-desk")
    assert read_manifest(made)["made_from"]["settings"]["format"] == "help-desk"
    with pytest.raises(InputError, match="format: no such format: did you mean 'help-desk'"):
        imported(folder, "help-desc")


def test_plan_counts_the_files_that_it_names(folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in/faq.tsv").write_text(LINES)
    files = "\n    def files(self, source):\n        return {'corpus': [source / 'faq.tsv'], 'queries': [source / 'faq.tsv']}\n"
    format = put(folder, "faq_files", code_of_the_page() + files)
    settings = rd.ImportSettings(format=format, input=str(folder / "in"), output=str(folder / "o"))
    assert settings.forecast(Known()).makes[f"{folder}/o/queries"].rows == 2


def test_an_edited_format_makes_its_import_stale(folder: Path) -> None:
    format = put(folder, "faq_edited", code_of_the_page())
    made = imported(folder, format)
    before = (made / "manifest.json").read_bytes()
    assert imported(folder, format) == made
    (folder / "faq_edited.py").write_text(f"{code_of_the_page()}\n# edited\n")
    with pytest.raises(InputError, match=r"was made from something else \(format_code: "):
        imported(folder, format)
    assert (made / "manifest.json").read_bytes() == before


def test_the_code_of_a_format_of_raydense_is_no_part(folder: Path) -> None:
    (folder / "collection.tsv").write_text("1\tTwo years.\n")
    asked = rd.ImportSettings(format="msmarco", input=str(folder / "collection.tsv"), output=str(folder / "o"))
    assert provenance("import", asked).keys() == {"stage", "settings", "inputs"}


READ = "class Faq:\n    def read(self, source, intake):\n        "


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("lacks_class", "x = 1", "format: lacks_class has no Faq; give package.module:Class"),
        ("no_class", "def Faq(): pass", "format: no_class:Faq is no class of a format.*; write one as docs/extending.md"),
        (
            "made_with",
            "class Faq:\n    def __init__(self, path): pass\n    def read(self, source, intake): pass",
            "format: made_with:Faq .*path",
        ),
        ("no_read", "class Faq:\n    def raed(self, source, intake): pass", "format: no_read:Faq has no read"),
        ("no_module_there:Faq", "", "format: no module 'no_module_there'; install its package"),
        (
            "with_fault",
            "import math\nx = math.squrt(2)\n",
            "{folder}/with_fault.py:2: AttributeError: module 'math' has no attribute 'squrt'",
        ),
        ("not_a_number", f"{READ}float('x')\n", "{folder}/not_a_number.py:3: ValueError: could not convert string to float: 'x'"),
        (
            "no_title",
            f"import pyarrow as pa\n{READ}intake.corpus(([pa.table({{'id': ['1']}})], str))\n",
            "{folder}/no_title.py:4: KeyError: .*; correct the format no_title:Faq, or what it reads",
        ),
    ],
)
def test_a_fault_is_one_line(folder: Path, name: str, code: str, message: str) -> None:
    format = name if ":" in name else put(folder, name, code)
    with pytest.raises(InputError, match=message.replace("{folder}", re.escape(str(folder)))) as caught:
        imported(folder, format)
    assert "\n" not in str(caught.value)
    assert not (folder / "data").exists()


def test_a_fault_of_what_a_format_writes_is_one_line_too(folder: Path) -> None:
    made = imported(folder, put(folder, "faq_to_write", code_of_the_page()))
    format = put(folder, "faq_writes", "class Faq:\n    def write(self, outlet):\n        outlet.nothing()\n")
    with pytest.raises(InputError, match=r"faq_writes\.py:3: AttributeError: .*'nothing'.*; correct the format faq_writes:Faq"):
        rd.export(rd.ExportSettings(format=format, dataset=made, output=folder / "out"))
    assert not (folder / "out").exists()
    with pytest.raises(InputError, match="format: faq_writes:Faq has no read"):
        imported(folder, format, "other")


def test_a_table_that_lacks_a_column_is_one_line(folder: Path) -> None:
    table = "    def passages(self, source):\n        return [pa.table({'passage_id': ['1'], 'body': ['x']})], str\n"
    format = put(folder, "faq_lacks", f"import pyarrow as pa\n{READ}pass\n{table}")
    with pytest.raises(InputError, match=r"^faq_lacks:Faq.passages: a table of passage_id, body has no title; add the column$"):
        rd.import_corpus(format, folder / "faq.tsv", folder / "alone")
    assert not (folder / "alone").exists()
