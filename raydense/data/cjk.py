"""The characters of Chinese, Japanese and Korean, which do not separate all words by blanks."""

CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9d\U00020000-\U0002fa1f"
"""As in the brackets of a regular expression: kana, ideographs, and syllables of Hangul."""
