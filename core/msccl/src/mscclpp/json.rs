//! JSON with places: values are looked at one level at a time, as parts of the file's text, so that each
//! knows its line.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::fault::{Class, ImportError, Result};
use crate::xml::{Lines, Pos};

/// A file.
pub(super) struct File<'a>(Lines<'a>);

/// A value of a file.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    file: &'a File<'a>,
    text: &'a str,
}

/// An object of a file.
pub(super) struct Object<'a> {
    node: Node<'a>,
    fields: BTreeMap<String, &'a RawValue>,
}

impl<'a> File<'a> {
    pub fn new(text: &'a str) -> Self {
        Self(Lines::of(text))
    }

    /// The whole file, if it is JSON.
    pub fn root(&'a self) -> Result<Node<'a>> {
        let raw: &RawValue = serde_json::from_str(self.0.text).map_err(|error| {
            let at = Pos { line: error.line() as u32, column: error.column() as u32 };
            ImportError::new(Class::Syntax, at, format!("the text is no JSON: {error}"))
        })?;
        Ok(Node { file: self, text: raw.get() })
    }
}

impl<'a> Node<'a> {
    /// Its line and column.
    pub fn pos(self) -> Pos {
        // Both are parts of one string.
        self.file.0.pos((self.text.as_ptr() as usize).saturating_sub(self.file.0.text.as_ptr() as usize))
    }

    pub fn error(self, class: Class, text: impl Into<String>) -> ImportError {
        ImportError::new(class, self.pos(), text)
    }

    pub fn object(self) -> Result<Object<'a>> {
        Ok(Object { node: self, fields: self.parsed("an object")? })
    }

    pub fn list(self) -> Result<Vec<Node<'a>>> {
        let items: Vec<&'a RawValue> = self.parsed("a list")?;
        Ok(items.into_iter().map(|raw| Node { file: self.file, text: raw.get() }).collect())
    }

    pub fn number(self, most: u64) -> Result<u64> {
        let number = serde_json::from_str(self.text).ok().filter(|number| *number <= most);
        number.ok_or_else(|| self.wrong(&format!("a number from 0 to {most}")))
    }

    pub fn word(self) -> Result<String> {
        self.parsed("a string")
    }

    pub fn flag(self) -> Result<bool> {
        self.parsed("true or false")
    }

    /// Something else should be here.
    pub fn wrong(self, expected: &str) -> ImportError {
        let found: String = self.text.chars().take(40).collect();
        self.error(Class::Attribute, format!("{found} where {expected} should come"))
    }

    fn parsed<T: Deserialize<'a>>(self, expected: &str) -> Result<T> {
        serde_json::from_str(self.text).map_err(|_| self.wrong(expected))
    }
}

impl<'a> Object<'a> {
    pub fn pos(&self) -> Pos {
        self.node.pos()
    }

    pub fn error(&self, class: Class, text: impl Into<String>) -> ImportError {
        self.node.error(class, text)
    }

    pub fn get(&self, name: &str) -> Option<Node<'a>> {
        self.fields.get(name).map(|raw| Node { file: self.node.file, text: raw.get() })
    }

    pub fn required(&self, name: &str) -> Result<Node<'a>> {
        self.get(name).ok_or_else(|| self.error(Class::Attribute, format!("\"{name}\" is missing")))
    }

    /// A number that must be there.
    pub fn number(&self, name: &str, most: u32) -> Result<u32> {
        // At most `most`, so it fits.
        Ok(self.required(name)?.number(u64::from(most))? as u32)
    }

    /// The items of a list, none where there is no such list.
    pub fn list(&self, name: &str) -> Result<Vec<Node<'a>>> {
        self.get(name).map_or_else(|| Ok(Vec::new()), Node::list)
    }

    /// A list of numbers.
    pub fn numbers(&self, name: &str, most: u32) -> Result<Vec<u32>> {
        self.required(name)?
            .list()?
            .into_iter()
            .map(|node| Ok(node.number(u64::from(most))? as u32))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_know_their_places() {
        let file = File::new("{\n  \"a\": [1,\n \"ä\", {\"b\": -1}], \"c\": true }");
        let root = file.root().unwrap().object().unwrap();
        let items = root.list("a").unwrap();
        assert_eq!((items[0].pos(), items[0].number(9).unwrap()), (Pos { line: 2, column: 9 }, 1));
        assert_eq!((items[1].pos(), items[1].word().unwrap()), (Pos { line: 3, column: 2 }, "ä".to_owned()));
        let inner = items[2].object().unwrap();
        assert_eq!(inner.pos(), Pos { line: 3, column: 7 });
        let error = inner.number("b", 7).unwrap_err();
        assert_eq!((error.line, error.column, error.class), (3, 13, Class::Attribute));
        assert!(root.required("c").unwrap().flag().unwrap() && root.get("d").is_none());
        assert!(root.list("c").is_err() && root.required("d").is_err() && items[0].object().is_err());
        let error = File::new("{\n\"a\": }").root().map(|_| ()).unwrap_err();
        assert_eq!((error.line, error.class), (2, Class::Syntax));
        let deep = "[".repeat(if cfg!(miri) { 1_000 } else { 100_000 });
        assert!(File::new(&deep).root().is_err());
    }
}
