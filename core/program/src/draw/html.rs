//! A page with the picture of a program, in which the transfers of the step under the pointer stand out.

use super::{escape, to_svg};
use crate::Program;

/// The script that the page adds to the picture: the step under the pointer, its arrows, and the steps at
/// their other ends stay, all else fades; the line above says what it is. Keys do the same as the pointer.
const SCRIPT: &str = r#"
const info = document.getElementById("info"), svg = document.querySelector("svg");
const steps = new Map([...svg.querySelectorAll(".step")].map(g => [g.dataset.step, g]));
const arrows = [...svg.querySelectorAll(".arrow")];
function show(g) {
  svg.classList.toggle("hover", !!g);
  svg.querySelectorAll(".on").forEach(e => e.classList.remove("on"));
  info.textContent = g ? g.querySelector("title").textContent : info.dataset.text;
  if (!g) return;
  g.classList.add("on");
  for (const a of arrows) {
    if (a.dataset.from !== g.dataset.step && a.dataset.to !== g.dataset.step) continue;
    a.classList.add("on");
    for (const end of [a.dataset.from, a.dataset.to]) steps.get(end)?.classList.add("on");
  }
}
for (const g of svg.querySelectorAll(".step, .cell")) {
  g.addEventListener("mouseenter", () => show(g));
  g.addEventListener("mouseleave", () => show(null));
  g.addEventListener("focus", () => show(g));
  g.addEventListener("blur", () => show(null));
  g.setAttribute("tabindex", "0");
}
"#;

const STYLE: &str = "body{font-family:sans-serif;margin:0}#info{position:sticky;top:0;left:0;background:#fff;\
     padding:8px 14px;border-bottom:1px solid #ccc;min-height:1.2em;max-width:100vw;box-sizing:border-box}\
     svg.hover .step,svg.hover .arrow{opacity:.12}svg.hover .on{opacity:1}.arrow.on{stroke-width:2}\
     .cell.on{stroke:#d55e00;stroke-width:2}:focus{outline:none}";

/// The page. It needs nothing from elsewhere.
pub fn to_html(program: &Program) -> String {
    let name = escape(&program.shape.name);
    let hint = "Point at a step or a square to see what it does.";
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{name}</title>\n\
         <style>{STYLE}</style></head>\n<body>\n<div id=\"info\" aria-live=\"polite\" \
         data-text=\"{hint}\">{hint}</div>\n{}<script>{SCRIPT}</script>\n</body>\n</html>\n",
        to_svg(program)
    )
}
