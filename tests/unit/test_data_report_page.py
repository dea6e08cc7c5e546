"""What a report in Markdown shows of texts."""

from hypothesis import given
from hypothesis import strategies as st

from raydense.data.report_page import shown


@given(st.text())
def test_a_text_is_no_html(text: str) -> None:
    assert "<" not in shown(text)


def test_what_looks_like_html_is_shown_as_it_is() -> None:
    text = "AT&T <b>bold</b> <!-- &amp; --> 1 < 2"
    assert shown(text) == "AT&amp;T &lt;b>bold&lt;/b> &lt;!-- &amp;amp; --> 1 &lt; 2"
