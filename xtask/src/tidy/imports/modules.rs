//! The files of a crate and what they import from each other.
//!
//! An import is a path to another file of the crate, in `use` or anywhere else, outside tests. A name that a
//! module only passes on (`pub use`) leads to the file that defines it, so a parent that passes names on is
//! not in the middle of a circle.

use super::super::Source;
use super::super::rust::{PathAt, collect_paths, is_cfg_test};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};

/// The number of times that a name may be passed on before the search gives up.
const MOST_STEPS: usize = 16;

/// A crate of the workspace.
pub struct Crate {
    /// The folder of the crate, from the root of the workspace.
    pub folder: String,
    /// The files below `src`, but for those of tests.
    pub files: Vec<File>,
    /// The imports from one file to another.
    pub imports: Vec<Import>,
}

/// A file of a crate.
pub struct File {
    /// The path from the root of the workspace.
    pub path: String,
    /// The folder that the file belongs to; `a.rs` beside a folder `a` belongs to `a`.
    pub folder: String,
    /// The path of the file's module in the crate.
    module: Vec<String>,
    /// The names of the items that the file defines.
    items: BTreeSet<String>,
    /// The names that the file passes on, and the paths that they stand for.
    passed_on: Vec<(String, PathAt)>,
    /// The modules that the file passes on whole.
    globs: Vec<Vec<String>>,
    /// The paths that the file's code uses, with the inline modules around them.
    paths: Vec<(Vec<String>, PathAt)>,
    /// The modules that the file declares.
    children: BTreeSet<String>,
    /// The modules that the file declares for tests.
    test_children: BTreeSet<String>,
    /// The macros that the file exports at the crate's root.
    macros: Vec<String>,
}

/// One file's import of another.
#[derive(Clone, Debug)]
pub struct Import {
    /// The file that imports.
    pub from: usize,
    /// The file that is imported.
    pub to: usize,
    /// The line of the import.
    pub line: usize,
    /// The path as it is written.
    pub name: String,
}

/// The crates among these sources, with their files and imports.
pub fn crates(sources: &[Source]) -> Vec<Crate> {
    let folders = sources.iter().filter_map(|source| source.path.strip_suffix("/Cargo.toml"));
    folders.map(|folder| read(folder, sources)).filter(|krate| !krate.files.is_empty()).collect()
}

fn read(folder: &str, sources: &[Source]) -> Crate {
    let below = format!("{folder}/src/");
    let own = |source: &&Source| source.path.starts_with(&below) && source.extension() == "rs";
    let names: Vec<&str> = sources.iter().filter(own).map(|source| &source.path[below.len()..]).collect();
    let mut files: Vec<File> = Vec::new();
    for source in sources.iter().filter(own) {
        let name = &source.path[below.len()..];
        if name.starts_with("bin/") || name == "main.rs" && names.contains(&"lib.rs") {
            continue;
        }
        files.extend(read_file(source, name, &names));
    }
    let tests: Vec<Vec<String>> = files.iter().flat_map(test_modules).collect();
    files.retain(|file| !tests.iter().any(|test| file.module.starts_with(test)));
    let imports = imports(&files);
    Crate { folder: folder.into(), files, imports }
}

fn test_modules(file: &File) -> Vec<Vec<String>> {
    file.test_children.iter().map(|child| [file.module.clone(), vec![child.clone()]].concat()).collect()
}

fn read_file(source: &Source, name: &str, names: &[&str]) -> Option<File> {
    let tokens: TokenStream = source.text.parse().ok()?;
    let syntax = syn::parse_file(&source.text).ok()?;
    let stem = name.trim_end_matches(".rs");
    let mut module: Vec<String> = stem.split('/').map(str::to_string).collect();
    if ["mod", "lib", "main"].contains(&module.last().map_or("", String::as_str)) {
        module.pop();
    }
    let has_folder = names.iter().any(|other| other.starts_with(&format!("{stem}/")));
    let folder = if has_folder { stem } else { name.rsplit_once('/').map_or("", |(folder, _)| folder) };
    let mut file = File {
        path: source.path.clone(),
        folder: folder.into(),
        module,
        items: BTreeSet::new(),
        passed_on: Vec::new(),
        globs: Vec::new(),
        paths: Vec::new(),
        children: BTreeSet::new(),
        test_children: BTreeSet::new(),
        macros: Vec::new(),
    };
    syntax.items.iter().for_each(|item| add_item(&mut file, item));
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut words = BTreeSet::new();
    walk(&tokens, &mut Vec::new(), &mut file.paths, &mut words);
    // What is passed on and used here as well is an import.
    let used = file.passed_on.iter().filter(|(name, _)| words.contains(name));
    let used: Vec<_> = used.map(|(_, path)| (Vec::new(), path.clone())).collect();
    file.paths.extend(used);
    Some(file)
}

/// Notes what an item defines, declares or passes on.
fn add_item(file: &mut File, item: &syn::Item) {
    match item {
        syn::Item::Mod(module) => {
            let name = module.ident.to_string();
            if module.content.is_some() {
                file.items.insert(name);
            } else if module.attrs.iter().any(is_cfg_test) {
                file.test_children.insert(name);
            } else {
                file.children.insert(name);
            }
        }
        syn::Item::Use(item) => {
            let visible = !matches!(item.vis, syn::Visibility::Inherited);
            pass_on(file, &item.tree, &[], visible);
        }
        syn::Item::Macro(item) => {
            let is_exported = item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export"));
            let name = item.ident.iter().map(ToString::to_string);
            if is_exported {
                file.macros.extend(name);
            } else {
                file.items.extend(name);
            }
        }
        item => file.items.extend(defined(item)),
    }
}

/// The name of an item.
fn defined(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::TraitAlias(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Notes the names that a `use` brings; a private one serves children, who may take them from here.
fn pass_on(file: &mut File, tree: &syn::UseTree, prefix: &[String], visible: bool) {
    let with = |name: &syn::Ident| [prefix, &[name.to_string()]].concat();
    let line = |name: &syn::Ident| name.span().start().line;
    match tree {
        syn::UseTree::Path(path) => pass_on(file, &path.tree, &with(&path.ident), visible),
        syn::UseTree::Name(name) if name.ident == "self" => {
            let own = prefix.last().cloned().unwrap_or_default();
            file.passed_on.push((own, (prefix.to_vec(), line(&name.ident))));
        }
        syn::UseTree::Name(name) => {
            file.passed_on.push((name.ident.to_string(), (with(&name.ident), line(&name.ident))));
        }
        syn::UseTree::Rename(name) => {
            file.passed_on.push((name.rename.to_string(), (with(&name.ident), line(&name.ident))));
        }
        syn::UseTree::Glob(_) if visible => file.globs.push(prefix.to_vec()),
        syn::UseTree::Glob(_) => {}
        syn::UseTree::Group(group) => {
            group.items.iter().for_each(|tree| pass_on(file, tree, prefix, visible));
        }
    }
}

type Paths = Vec<(Vec<String>, PathAt)>;

/// Collects the paths of code, each with the inline modules around it, and the words outside of `use`. Items
/// for tests and visible `use` items are left out.
fn walk(tokens: &[TokenTree], inside: &mut Vec<String>, paths: &mut Paths, words: &mut BTreeSet<String>) {
    let mut at = 0;
    let mut from = 0;
    let flush = |until: &[TokenTree], inside: &[String], paths: &mut Paths, words: &mut BTreeSet<String>| {
        let mut found = Vec::new();
        collect_paths(until, &mut found);
        paths.extend(found.into_iter().map(|path| (inside.to_vec(), path)));
        add_words(until, words);
    };
    while at < tokens.len() {
        let end = if is_test_attribute(&tokens[at..]) {
            Some(end_of_item(tokens, at + 2))
        } else if is_visible_use(&tokens[at..]) {
            Some(end_of_use(tokens, at))
        } else {
            None
        };
        if let Some(end) = end {
            flush(&tokens[from..at], inside, paths, words);
            (at, from) = (end, end);
            continue;
        }
        if let Some((name, group)) = inline_module(&tokens[at..]) {
            flush(&tokens[from..at], inside, paths, words);
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            inside.push(name);
            walk(&inner, inside, paths, words);
            inside.pop();
            at += 3;
            from = at;
            continue;
        }
        at += 1;
    }
    flush(&tokens[from..], inside, paths, words);
}

/// The words of code that is not a `use` item.
fn add_words(tokens: &[TokenTree], words: &mut BTreeSet<String>) {
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(word) if word == "use" => {
                at = end_of_use(tokens, at);
                continue;
            }
            TokenTree::Ident(word) => {
                words.insert(word.to_string());
            }
            TokenTree::Group(group) => {
                add_words(&group.stream().into_iter().collect::<Vec<_>>(), words);
            }
            _ => {}
        }
        at += 1;
    }
}

/// `#[cfg(test)]`.
fn is_test_attribute(tokens: &[TokenTree]) -> bool {
    let [TokenTree::Punct(hash), TokenTree::Group(group), ..] = tokens else { return false };
    let inner: String = group.stream().to_string().split_whitespace().collect();
    hash.as_char() == '#' && inner == "cfg(test)"
}

/// `pub use` and `pub(…) use`.
fn is_visible_use(tokens: &[TokenTree]) -> bool {
    let word =
        |at: usize, wanted: &str| matches!(tokens.get(at), Some(TokenTree::Ident(word)) if word == wanted);
    let is_scope =
        matches!(tokens.get(1), Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis);
    word(0, "pub") && (word(1, "use") || is_scope && word(2, "use"))
}

/// `mod name { … }`.
fn inline_module(tokens: &[TokenTree]) -> Option<(String, &proc_macro2::Group)> {
    match tokens {
        [TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Group(group), ..]
            if word == "mod" && group.delimiter() == Delimiter::Brace =>
        {
            Some((name.to_string(), group))
        }
        _ => None,
    }
}

fn is_semicolon(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == ';')
}

/// Behind the item that begins at `at`: its semicolon or its braces.
fn end_of_item(tokens: &[TokenTree], at: usize) -> usize {
    let is_use = matches!(tokens.get(at), Some(TokenTree::Ident(word)) if word == "use");
    let ends = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace && !is_use,
        token => is_semicolon(token),
    };
    tokens[at..].iter().position(ends).map_or(tokens.len(), |length| at + length + 1)
}

fn end_of_use(tokens: &[TokenTree], at: usize) -> usize {
    tokens[at..].iter().position(is_semicolon).map_or(tokens.len(), |length| at + length + 1)
}

/// The imports between files, each pair of files once.
fn imports(files: &[File]) -> Vec<Import> {
    let modules: BTreeMap<&[String], usize> =
        files.iter().enumerate().map(|(index, file)| (file.module.as_slice(), index)).collect();
    let tree = Tree { files, modules };
    let mut imports: BTreeMap<(usize, usize), Import> = BTreeMap::new();
    for (from, file) in files.iter().enumerate() {
        for (inside, (path, line)) in &file.paths {
            let Some(to) = tree.target(file, inside, path, MOST_STEPS) else { continue };
            if to != from {
                let import = Import { from, to, line: *line, name: path.join("::") };
                imports.entry((from, to)).or_insert(import);
            }
        }
    }
    imports.into_values().collect()
}

struct Tree<'a> {
    files: &'a [File],
    modules: BTreeMap<&'a [String], usize>,
}

impl Tree<'_> {
    /// The file that a path leads to, if it is one of this crate's.
    fn target(&self, file: &File, inside: &[String], path: &[String], steps: usize) -> Option<usize> {
        if path.len() < 2 {
            return None; // as in `pub(super)`
        }
        let mut base = [&file.module[..], inside].concat();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (base, rest) = (Vec::new(), &path[1..]),
            "self" | "super" => {
                while let Some((first, others)) = rest.split_first()
                    && (first == "self" || first == "super")
                {
                    if first == "super" {
                        base.pop()?;
                    }
                    rest = others;
                }
            }
            first if inside.is_empty() && file.children.contains(first) => {}
            _ => return None,
        }
        self.find(&[&base[..], rest].concat(), steps)
    }

    /// The file that defines what this path from the crate's root names.
    fn find(&self, path: &[String], steps: usize) -> Option<usize> {
        let (index, rest) = (0..=path.len())
            .rev()
            .find_map(|length| self.modules.get(&path[..length]).map(|index| (*index, &path[length..])))?;
        let Some(name) = rest.first() else { return Some(index) };
        let file = &self.files[index];
        if steps == 0 || file.items.contains(name) {
            return Some(index);
        }
        if let Some((_, (passed, _))) = file.passed_on.iter().find(|(own, _)| own == name) {
            let whole = [&passed[..], &rest[1..]].concat();
            let foreign = !["crate", "self", "super"].contains(&passed[0].as_str())
                && !file.children.contains(&passed[0]);
            return if foreign { None } else { self.target(file, &[], &whole, steps - 1) };
        }
        if path.len() == rest.len()
            && let Some(found) = self.files.iter().position(|file| file.macros.contains(name))
        {
            return Some(found);
        }
        Some(self.find_in_globs(file, name, steps).unwrap_or(index))
    }

    /// The file that defines a name which `file` may pass on with all of a module.
    fn find_in_globs(&self, file: &File, name: &str, steps: usize) -> Option<usize> {
        file.globs.iter().find_map(|glob| {
            let whole = [&glob[..], &[name.to_string()]].concat();
            let found = self.target(file, &[], &whole, steps - 1)?;
            self.files[found].items.contains(name).then_some(found)
        })
    }
}
