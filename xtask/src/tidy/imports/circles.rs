//! Finds the groups of files that import each other in circles.

use super::modules::{Crate, Import};
use std::collections::BTreeSet;

/// Files that all reach each other by imports, and lie in more than one folder.
pub struct Circle {
    /// The files, as positions in [`Crate::files`], in the order of their paths.
    pub files: Vec<usize>,
    /// The folders that the files lie in.
    pub folders: BTreeSet<String>,
    /// The imports inside the circle that go from one folder to another.
    pub crossing: Vec<Import>,
}

/// The circles of a crate that join files of different folders.
pub fn between_folders(krate: &Crate) -> Vec<Circle> {
    let folder = |file: usize| krate.files[file].folder.clone();
    let groups = components(krate.files.len(), &krate.imports);
    let circles = groups.into_iter().map(|mut files| {
        files.sort_by_key(|file| &krate.files[*file].path);
        let folders = files.iter().map(|file| folder(*file)).collect();
        let is_inside = |import: &&Import| files.contains(&import.from) && files.contains(&import.to);
        let crosses = |import: &&Import| folder(import.from) != folder(import.to);
        let crossing = krate.imports.iter().filter(is_inside).filter(crosses).cloned().collect();
        Circle { files, folders, crossing }
    });
    circles.filter(|circle| circle.folders.len() > 1).collect()
}

/// The strongly connected components of a graph (Kosaraju's algorithm).
fn components(nodes: usize, imports: &[Import]) -> Vec<Vec<usize>> {
    let mut forward = vec![Vec::new(); nodes];
    let mut backward = vec![Vec::new(); nodes];
    for import in imports {
        forward[import.from].push(import.to);
        backward[import.to].push(import.from);
    }
    let mut order = Vec::new();
    let mut seen = vec![false; nodes];
    for node in 0..nodes {
        visit(node, &forward, &mut seen, &mut order);
    }
    let mut seen = vec![false; nodes];
    let mut groups = Vec::new();
    for node in order.into_iter().rev() {
        let mut group = Vec::new();
        visit(node, &backward, &mut seen, &mut group);
        groups.push(group);
    }
    groups
}

/// Appends the nodes reachable from `node` that were not seen yet, each after those that it leads to.
fn visit(node: usize, edges: &[Vec<usize>], seen: &mut [bool], order: &mut Vec<usize>) {
    if std::mem::replace(&mut seen[node], true) {
        return;
    }
    for next in &edges[node] {
        visit(*next, edges, seen, order);
    }
    order.push(node);
}
