//! The last step of the book (`make docs`): files of the repository that its pages link to are put into it,
//! and every link of every page is followed.
//!
//! Pages are checked as mdBook wrote them, since a link that is right in the repository may lead nowhere in
//! the book.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The folder of the book for files of the repository.
const FILES: &str = "repository";

/// The pages' folder in the repository.
const PAGES: &str = "docs";

/// Adds to the book what its pages need from the repository, then follows all links.
pub fn run(root: &Path, book: &Path) -> Result<(), String> {
    let mut pages = BTreeMap::new();
    for path in files_below(book)? {
        if path.extension().is_some_and(|ending| ending == "html") {
            let text =
                fs::read_to_string(book.join(&path)).map_err(|e| format!("{}: {e}", path.display()))?;
            pages.insert(path, text);
        }
    }
    if pages.is_empty() {
        return Err(format!("{} has no pages: run make docs", book.display()));
    }
    let mut copied = BTreeSet::new();
    for (path, text) in &mut pages {
        let changed = with_files(root, book, path, text, &mut copied)?;
        if changed != *text {
            fs::write(book.join(path), &changed).map_err(|e| format!("{}: {e}", path.display()))?;
            *text = changed;
        }
    }
    let broken = broken(book, &pages);
    if broken.is_empty() {
        let links: usize = pages.values().map(|text| links(text).count()).sum();
        println!("book: {} pages, {links} links, {} files of the repository", pages.len(), copied.len());
        return Ok(());
    }
    Err(format!("links of the book that lead nowhere:\n{}", broken.join("\n")))
}

/// A page whose links out of the book lead to copies in it.
fn with_files(
    root: &Path,
    book: &Path,
    page: &Path,
    text: &str,
    copied: &mut BTreeSet<PathBuf>,
) -> Result<String, String> {
    let mut changed = text.to_string();
    for link in links(text).collect::<BTreeSet<_>>() {
        let (path, _) = link.split_once('#').unwrap_or((link, ""));
        let Some(file) = in_repository(root, page, path) else { continue };
        let copy = copy(root, book, &file)?;
        let up = "../".repeat(page.components().count() - 1);
        for attribute in ["href", "src"] {
            let new = format!("{attribute}=\"{up}{}\"", copy.display());
            changed = changed.replace(&format!("{attribute}=\"{link}\""), &new);
        }
        copied.insert(copy);
    }
    Ok(changed)
}

/// The file of the repository to which a page's link leads, if it leads out of the book.
fn in_repository(root: &Path, page: &Path, link: &str) -> Option<PathBuf> {
    let path = resolved(&Path::new(PAGES).join(page), link)?;
    if path.starts_with(PAGES) {
        return None;
    }
    // mdBook has made links to pages of what were links to Markdown.
    let markdown = path.with_extension("md");
    let readme = path.join("README.md");
    let is_page = path.extension().is_some_and(|ending| ending == "html");
    let candidates = [readme, path, if is_page { markdown } else { PathBuf::new() }];
    candidates.into_iter().find(|file| root.join(file).is_file())
}

/// Puts a file of the repository into the book; texts as a page, so that browsers show them.
fn copy(root: &Path, book: &Path, file: &Path) -> Result<PathBuf, String> {
    let is_picture = file.extension().is_some_and(|ending| ending == "svg" || ending == "png");
    let mut to = Path::new(FILES).join(file);
    let fail = |e: std::io::Error| format!("{}: {e}", file.display());
    let mut bytes = fs::read(root.join(file)).map_err(fail)?;
    if !is_picture {
        let text = String::from_utf8_lossy(&bytes);
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let name = file.display();
        bytes = format!(
            "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><title>{name}</title>\n\
             <style>pre {{ white-space: pre-wrap; max-width: 110ch; margin: 2em auto }}</style>\n\
             <h1>{name}</h1><pre>{text}</pre></html>\n"
        )
        .into_bytes();
        to.as_mut_os_string().push(".html");
    }
    let path = book.join(&to);
    fs::create_dir_all(path.parent().unwrap_or(book)).map_err(fail)?;
    fs::write(path, bytes).map_err(fail)?;
    Ok(to)
}

/// A line for each link that leads nowhere.
fn broken(book: &Path, pages: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let mut broken = BTreeSet::new();
    for (page, text) in pages {
        // A page of no folder: servers show it at any address.
        if page == Path::new("404.html") {
            continue;
        }
        for link in links(text) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { Some(page.clone()) } else { resolved(page, path) };
            let is_right = target.is_some_and(|target| match pages.get(&target) {
                Some(page) => anchor.is_empty() || has_anchor(page, anchor),
                None => book.join(target).is_file(),
            });
            if !is_right {
                broken.insert(format!("  {}: {link}", page.display()));
            }
        }
    }
    broken.into_iter().collect()
}

fn has_anchor(page: &str, anchor: &str) -> bool {
    ["id", "name"].iter().any(|name| page.contains(&format!("{name}=\"{anchor}\"")))
}

/// The target of a relative link of a page, without `.` and `..`; None if that is above the folder.
fn resolved(page: &Path, link: &str) -> Option<PathBuf> {
    let mut path = page.parent()?.to_path_buf();
    for part in Path::new(link).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                if !path.pop() {
                    return None;
                }
            }
            part => path.push(part),
        }
    }
    Some(path)
}

/// The relative links of a page.
fn links(page: &str) -> impl Iterator<Item = &str> {
    let of = |attribute: &'static str| {
        page.split(attribute).skip(1).filter_map(|rest| rest.split_once('"').map(|(link, _)| link))
    };
    of(" href=\"").chain(of(" src=\"")).filter(|link| !link.contains(':') && !link.is_empty())
}

/// The files below a folder, relative to it.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let (mut found, mut open) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(below) = open.pop() {
        let fail = |e: std::io::Error| format!("{}: {e}; run make docs", folder.join(&below).display());
        for entry in fs::read_dir(folder.join(&below)).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let path = below.join(entry.file_name());
            let is_folder = entry.file_type().map_err(fail)?.is_dir();
            if is_folder && path != Path::new(FILES) {
                open.push(path);
            } else if !is_folder {
                found.push(path);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository with one page in its book.
    fn checked(name: &str, page: &str) -> (PathBuf, Result<(), String>) {
        let root = std::env::temp_dir().join(format!("hawser-book-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("book/adr")).unwrap();
        fs::create_dir_all(root.join("bench")).unwrap();
        fs::write(root.join("SECURITY.md"), "a < b").unwrap();
        fs::write(root.join("bench/README.md"), "figures").unwrap();
        fs::write(root.join("book/other.html"), "<h1 id=\"there\">").unwrap();
        fs::write(root.join("book/adr/page.html"), page).unwrap();
        let outcome = run(&root, &root.join("book"));
        (root, outcome)
    }

    #[test]
    fn files_of_the_repository_are_put_into_the_book() {
        let page =
            "<a href=\"../../SECURITY.html#x\"> <a href=\"../../bench\"> <a href=\"../other.html#there\">";
        let (root, outcome) = checked("files", page);
        assert_eq!(outcome, Ok(()));
        let page = fs::read_to_string(root.join("book/adr/page.html")).unwrap();
        assert!(page.contains("href=\"../repository/SECURITY.md.html\""), "{page}");
        assert!(page.contains("href=\"../repository/bench/README.md.html\""), "{page}");
        let copy = fs::read_to_string(root.join("book/repository/SECURITY.md.html")).unwrap();
        assert!(copy.contains("a &lt; b"), "{copy}");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn links_that_lead_nowhere_are_named() {
        let page =
            "<a href=\"no.html\"> <a href=\"../other.html#no\"> <img src=\"../../no.svg\"> <a href=\"#no\">";
        let (root, outcome) = checked("broken", page);
        let text = outcome.unwrap_err();
        for link in ["no.html", "../other.html#no", "../../no.svg", "#no"] {
            assert!(text.contains(&format!("  adr/page.html: {link}")), "{text}");
        }
        fs::remove_dir_all(root).unwrap();
    }
}
