//! Pictures: those of the repository, and those that programs draw, are for everybody to read. Each has a
//! title and a description for those who do not see it, says what its axes are, and cuts no text off.

use std::path::{Path, PathBuf};
use std::process::Command;

use hawser_tests::pages::repository;
use hawser_tests::skip::skipped;
use roxmltree::{Document, Node};

/// The width of a letter in parts of the font's size: as the widest of the fonts that browsers take for
/// `sans-serif` have it in the mean.
const LETTER: f64 = 0.52;

/// A number of an attribute.
fn number(node: Node<'_, '_>, name: &str) -> Option<f64> {
    node.attribute(name)?.trim_end_matches("px").parse().ok()
}

/// The shift of `translate(x y)` or `translate(x,y)`, and whether a quarter turn comes behind it.
fn shift(node: Node<'_, '_>) -> ((f64, f64), bool) {
    let Some(transform) = node.attribute("transform") else { return ((0.0, 0.0), false) };
    let inner = transform.split_once("translate(").and_then(|(_, rest)| rest.split_once(')'));
    let numbers: Vec<f64> = inner.map_or(Vec::new(), |(numbers, _)| {
        numbers.split([' ', ',']).filter_map(|number| number.parse().ok()).collect()
    });
    let place = (numbers.first().copied().unwrap_or(0.0), numbers.get(1).copied().unwrap_or(0.0));
    (place, transform.contains("rotate(-90"))
}

/// An attribute of a text, or of the nearest element around it that has it.
fn inherited<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    node.ancestors().find_map(|node| node.attribute(name))
}

/// The box around a text: left, top, right, bottom.
fn bounds(node: Node<'_, '_>, text: &str) -> [f64; 4] {
    let (mut x, mut y) = (number(node, "x").unwrap_or(0.0), number(node, "y").unwrap_or(0.0));
    let is_head = node.attribute("class") == Some("head");
    let size = inherited(node, "font-size").and_then(|size| size.trim_end_matches("px").parse().ok());
    let size = if is_head { 12.0 } else { size.unwrap_or(16.0) };
    let length = text.chars().count() as f64 * size * LETTER;
    let before = match inherited(node, "text-anchor") {
        Some("end") => length,
        Some("middle") => length / 2.0,
        _ => 0.0,
    };
    let mut is_turned = false;
    for around in node.ancestors() {
        let ((right, down), turned) = shift(around);
        (x, y) = (x + right, y + down);
        is_turned |= turned;
    }
    match is_turned {
        true => [x - size, y - (length - before), x, y + before],
        false => [x - before, y - size, x - before + length, y],
    }
}

/// The faults of a picture; `what` says which one it is.
fn faults(what: &str, text: &str) -> Vec<String> {
    let picture = match Document::parse(text) {
        Ok(picture) => picture,
        Err(error) => return vec![format!("{what}: {error}")],
    };
    let root = picture.root_element();
    let mut faults = Vec::new();
    let mut fault = |text: String| faults.push(format!("{what}: {text}"));
    for part in ["title", "desc"] {
        let words = root.children().find(|node| node.has_tag_name(("http://www.w3.org/2000/svg", part)));
        if words.and_then(|node| node.text()).is_none_or(|words| words.trim().is_empty()) {
            fault(format!("no <{part}>"));
        }
    }
    if root.attribute("role") != Some("img") || root.attribute("aria-labelledby").is_none() {
        fault("screen readers are not told that it is one picture".to_owned());
    }
    let sides: Vec<f64> = root
        .attribute("viewBox")
        .map_or(Vec::new(), |sides| sides.split(' ').filter_map(|side| side.parse().ok()).collect());
    let [_, _, width, height] = sides[..] else {
        fault("no viewBox: it cannot be scaled".to_owned());
        return faults;
    };
    if text.contains("NaN") || text.contains("\"inf") {
        fault("numbers that are none".to_owned());
    }
    for node in root.descendants().filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "text"))) {
        let texts = node.descendants().filter(Node::is_text);
        let words: String = texts.filter_map(|node| node.text()).collect();
        let [left, top, right, bottom] = bounds(node, &words);
        if left < 0.0 || top < 0.0 || right > width || bottom > height {
            fault(format!(
                "{words:?} is cut off: {left:.0} to {right:.0} of {width}, {top:.0} to {bottom:.0}"
            ));
        }
    }
    faults
}

fn tracked(pattern: &str) -> Vec<PathBuf> {
    let output = Command::new("git").args(["ls-files", pattern]).current_dir(repository()).output();
    let output = output.expect("git");
    String::from_utf8_lossy(&output.stdout).lines().map(|line| repository().join(line)).collect()
}

#[test]
fn pictures_of_the_repository_are_whole() {
    if !repository().join(".git").exists() {
        return skipped("this is no checkout of git");
    }
    let pictures = tracked("*.svg");
    assert!(pictures.len() >= 8, "{pictures:?}");
    let mut wrong = Vec::new();
    for path in pictures {
        let text = std::fs::read_to_string(&path).expect("a picture");
        wrong.extend(faults(&path.display().to_string(), &text));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The pictures of results are those that `bench/plot.py` draws of the figures beside them.
#[test]
fn pictures_of_results_are_those_of_their_figures() {
    if Command::new("python3").arg("--version").output().is_err() {
        return skipped("there is no python3");
    }
    let folder = folder("results");
    let drawn = folder.join("drawn.svg");
    for path in tracked("bench/results/*.svg") {
        let text = std::fs::read_to_string(&path).expect("a picture");
        // Its line has a name of this colour.
        let limit = text.split_once("fill=\"#2e8b57\">").and_then(|(_, rest)| rest.split(" GB/s<").next());
        let mut plot = Command::new("python3");
        plot.arg(repository().join("bench/plot.py")).arg(path.with_extension("json")).arg(&drawn);
        told(plot.args(limit.map(|limit| format!("--limit={limit}"))));
        let is_it = std::fs::read_to_string(&drawn).expect("a picture") == text;
        assert!(is_it, "{}: draw it again with bench/plot.py", path.display());
        for unit in ["time per operation in µs", "bus bandwidth in GB/s"] {
            assert!(text.contains(unit), "{unit}");
        }
    }
    std::fs::remove_dir_all(folder).expect("the folder is ours");
}

/// A folder of our own.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("hawser-pictures-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// The output of a command, which must succeed.
fn told(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

/// The tool that cargo has built, on the host device.
fn hawser(words: &[&str]) -> Command {
    let test = std::env::current_exe().expect("this test");
    let tool = test.parent().and_then(Path::parent).expect("target/PROFILE/deps").join("hawser");
    assert!(tool.is_file(), "no hawser: run cargo build -p hawser-cli");
    let mut command = Command::new(tool);
    command.args(words).env("HAWSER_DEVICE", "host").env_remove("HAWSER_RULES");
    command
}

#[test]
fn pictures_of_programs_are_whole() {
    let folder = folder("programs");
    let mut wrong = Vec::new();
    for (program, ranks) in [
        ("ring_all_reduce", "2"),
        ("ring_all_reduce", "4"),
        ("allpairs_all_reduce", "8"),
        ("tree_all_reduce", "8"),
        ("ring_all_reduce", "48"),
        ("ring_all_reduce", "64"),
        ("ring_all_gather", "300"),
    ] {
        let file = folder.join(format!("{program}-{ranks}.svg"));
        let mut show = hawser(&["plan", "show", program, "--ranks", ranks, "-o"]);
        told(show.arg(&file));
        let text = std::fs::read_to_string(&file).expect("a picture");
        wrong.extend(faults(&format!("{program} of {ranks} ranks"), &text));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    std::fs::remove_dir_all(folder).expect("the folder is ours");
}

#[test]
fn the_picture_of_a_step_names_every_operation() {
    let folder = folder("step");
    let file = folder.join("step.svg");
    let example = repository().join("examples/simulate/step.toml");
    told(hawser(&["simulate"]).arg(example).arg("-o").arg(&file));
    let text = std::fs::read_to_string(&file).expect("a picture");
    let wrong = faults("the step", &text);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for name in ["sum of attention", "sum of gradients of attention", "gradients", "parameters"] {
        assert!(text.contains(&format!("font-size=\"11\">{name}</text>")), "{name} is not in the legend");
    }
    assert!(text.contains("use of links in %") && text.contains("time in ms"), "axes have no units");
    std::fs::remove_dir_all(folder).expect("the folder is ours");
}

#[test]
fn what_is_cut_off_is_found() {
    let picture = |inside: &str| {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 100 50\" role=\"img\" \
             aria-labelledby=\"a b\" font-size=\"10\"><title id=\"a\">a</title>\
             <desc id=\"b\">b</desc>{inside}</svg>"
        )
    };
    let all = |text: &str| faults("it", text).len();
    let faults = |inside: &str| all(&picture(inside));
    assert_eq!(faults("<text x=\"10\" y=\"20\">inside</text>"), 0);
    assert_eq!(faults("<text x=\"90\" y=\"20\">outside</text>"), 1);
    assert_eq!(faults("<text x=\"10\" y=\"20\" text-anchor=\"end\">outside</text>"), 1);
    assert_eq!(faults("<g transform=\"translate(80,0)\"><text x=\"10\" y=\"20\">outside</text></g>"), 1);
    assert_eq!(faults("<text transform=\"translate(20 20) rotate(-90)\">a long name</text>"), 1);
    assert_eq!(all("<svg xmlns=\"http://www.w3.org/2000/svg\"/>"), 4);
}
