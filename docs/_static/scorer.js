// How search results are ranked: a page whose title has the words that were asked for comes first; records and tables last.
var asked = (new URLSearchParams(window.location.search).get("q") || "")
  .toLowerCase()
  .split(/[^a-z0-9_.]+/)
  .filter((word) => word.length > 1)
  .map((word) => word.slice(0, 6)); // "accumulation" finds "Accumulating"

var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: (result) => {
    const [page, title, , , score] = result;
    const said = title.toLowerCase();
    const found = asked.filter((word) => said.includes(word)).length;
    const words = said.split(/[^a-z0-9_]+/).filter((word) => word).length;
    let more = asked.length ? (20 * found) / asked.length + (15 * found) / words : 0;
    if (page.startsWith("how_do_i/")) more += 4;
    if (said.includes(" > ")) more -= 8; // a section of a page
    if (/^(decisions\/|generated\/(changelog|contributing)|benchmark|genindex)/.test(page)) more -= 40;
    return score + more;
  },
};
