//! The pages of the documentation, and the blocks of code in them.

use std::path::{Path, PathBuf};

/// A block of code of a page.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The first word behind the fence, such as `sh`; empty if there is none.
    pub language: String,
    /// The lines between the fences, without the indentation that they share with their fence.
    pub lines: Vec<String>,
}

impl Block {
    /// True if the lines are commands of a shell, or may be.
    pub fn is_shell(&self) -> bool {
        ["", "sh", "bash", "console"].contains(&self.language.as_str())
    }

    /// The commands of a block for a shell: lines that go on behind a `\` are one, comments and the `$` of a
    /// prompt are left out. Where a prompt stands before some lines, the others are output.
    pub fn commands(&self) -> Vec<String> {
        let text = self.lines.join("\n").replace("\\\n", " ");
        let has_prompts = text.lines().any(|line| line.starts_with("$ "));
        let command = |line: &str| match line.trim().strip_prefix("$ ") {
            Some(command) => Some(command.to_owned()),
            None => (!has_prompts).then(|| line.trim().to_owned()),
        };
        let commands = text.lines().filter_map(command);
        commands.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
    }

    /// The lines as one text.
    pub fn text(&self) -> String {
        self.lines.join("\n") + "\n"
    }
}

/// The blocks of code of a page.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut indentation = None;
    for line in page.lines() {
        let inner = line.trim_start();
        match (inner.strip_prefix("```"), indentation) {
            (Some(language), None) => {
                indentation = Some(line.len() - inner.len());
                let word = language.split(',').next().unwrap_or_default().trim();
                found.push(Block { language: word.to_owned(), lines: Vec::new() });
            }
            (Some(_), Some(_)) => indentation = None,
            (None, Some(shared)) => {
                let own = line.len() - inner.len();
                if let Some(block) = found.last_mut() {
                    block.lines.push(line[own.min(shared)..].to_owned());
                }
            }
            (None, None) => {}
        }
    }
    found
}

/// The folder of the repository.
///
/// # Panics
/// This crate lies elsewhere.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests lies in the repository")
}

/// The pages for readers: at the top, of `docs`, `examples` and the packages.
///
/// # Panics
/// A folder cannot be read.
pub fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = ["docs", "examples", "packaging"].map(|name| repository().join(name)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of the repository").flatten() {
            let path = entry.path();
            let is_built = path.ends_with("target");
            if path.is_dir() && !is_built {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.extend(["README.md", "CONTRIBUTING.md"].map(|name| repository().join(name)));
    found.sort();
    found
}

/// The path of a page as its readers know it, and its text.
///
/// # Panics
/// It cannot be read.
pub fn read(page: &Path) -> (String, String) {
    let name = page.strip_prefix(repository()).unwrap_or(page).display().to_string();
    (name, std::fs::read_to_string(page).expect("a page"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_with_their_commands() {
        let page = "a\n```sh\n# said\nmake x  \\\n  y\n```\n* b\n  ```console\n  $ make z\n  said\n  ```\n\
                    ```\nraw\n```\n";
        let found = blocks(page);
        let languages: Vec<&str> = found.iter().map(|block| block.language.as_str()).collect();
        assert_eq!(languages, ["sh", "console", ""]);
        assert_eq!(found[0].commands(), ["make x     y"]);
        assert_eq!((found[1].commands(), &found[1].lines[1][..]), (vec!["make z".to_owned()], "said"));
        assert_eq!((found[2].text(), found[2].is_shell()), ("raw\n".to_owned(), true));
    }
}
