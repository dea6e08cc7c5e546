// The words of a query that are marked in a passage: of three letters or more, without those that half of all English texts have, and in
// Chinese, Japanese and Korean, which put no blanks between words, each two neighbouring characters.
const STOP = new Set("and are but did does for from had has have how into not such that the their then there these they this was were what when where which who why will with".split(" "));
const CJK = /[{{ cjk }}]/u, LETTER = /(?![{{ cjk }}])[\p{L}\p{N}\p{M}]/u;  // a letter or digit of the other languages
const RUN = new RegExp(`(?:${CJK.source})+|(?:${LETTER.source})+`, "gu");
function wordsOf(query) {
  const words = new Set();
  for (const run of query.match(RUN) || []) {
    const letters = [...run];
    if (!CJK.test(run)) { if ((letters.length >= 3 && !STOP.has(run.toLowerCase())) || /\p{N}/u.test(run)) words.add(run); continue; }
    if (letters.length === 1) words.add(run);
    for (let i = 0; i + 1 < letters.length; i++) words.add(letters[i] + letters[i + 1]);
  }
  return [...words];
}

// Where the words stand in a text: 1 for each of its code units that is marked.
function flagsOf(text, words) {
  const flags = new Uint8Array(text.length);
  for (const word of words) {
    const inside = CJK.test(word) ? word : `(?<!${LETTER.source})${word}(?!${LETTER.source})`;  // a word has letters and digits alone
    for (const found of text.matchAll(new RegExp(inside, "giu"))) flags.fill(1, found.index, found.index + found[0].length);
  }
  return flags;
}

// Put a text into an element of the page, its words marked.
function marked(place, text, words) {
  place.replaceChildren();
  const flags = flagsOf(text, words);
  for (let from = 0, to = 0; from < text.length; from = to) {
    while (to < text.length && flags[to] === flags[from]) to++;
    if (flags[from]) {
      const mark = document.createElement("mark");
      mark.textContent = text.slice(from, to);
      place.append(mark);
    } else place.append(text.slice(from, to));
  }
}
