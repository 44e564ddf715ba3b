//! Elements of XML: read by another parser than the library's, changed and written again.

use std::fmt;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// An element with its attributes, in their order, and its children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// The name of the element.
    pub name: String,
    /// Names and values.
    pub attributes: Vec<(String, String)>,
    /// The elements within it.
    pub children: Vec<Element>,
}

impl Element {
    /// Reads the `algo` element of a text; what stands before and behind it is passed over.
    ///
    /// # Errors
    /// There is no such element, or the text is no XML.
    pub fn read(text: &str) -> Result<Self, String> {
        let begin = text.find("<algo").ok_or("there is no <algo> element")?;
        let end = text.rfind("</algo>").map_or(text.len(), |at| at + "</algo>".len());
        let mut reader = Reader::from_str(text.get(begin..end).ok_or("</algo> before <algo>")?);
        let mut open: Vec<Self> = Vec::new();
        loop {
            match reader.read_event().map_err(|error| format!("no XML: {error}"))? {
                Event::Start(start) => open.push(Self::start(&start)?),
                Event::Empty(start) => {
                    let element = Self::start(&start)?;
                    open.last_mut().ok_or("an empty <algo/>")?.children.push(element);
                }
                Event::End(_) => {
                    let element = open.pop().ok_or("an end without a beginning")?;
                    match open.last_mut() {
                        Some(parent) => parent.children.push(element),
                        None => return Ok(element),
                    }
                }
                Event::Text(text) if !text.trim().is_empty() => {
                    return Err("text between elements".to_owned());
                }
                Event::Eof => return Err("the text ends before </algo>".to_owned()),
                _ => {}
            }
        }
    }

    fn start(start: &BytesStart<'_>) -> Result<Self, String> {
        let mut attributes: Vec<(String, String)> = Vec::new();
        for attribute in start.attributes() {
            let attribute = attribute.map_err(|error| format!("no attribute: {error}"))?;
            attributes.push((attribute.key.as_ref().to_owned(), attribute.value.into_owned()));
        }
        Ok(Self { name: start.name().as_ref().to_owned(), attributes, children: Vec::new() })
    }

    /// The value of an attribute.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Gives an attribute another value; one that is not there is added.
    pub fn set(&mut self, name: &str, value: impl fmt::Display) {
        match self.attributes.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value.to_string(),
            None => self.attributes.push((name.to_owned(), value.to_string())),
        }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        write!(f, "{:1$}<{2}", "", 2 * depth, self.name)?;
        self.attributes.iter().try_for_each(|(name, value)| write!(f, " {name}=\"{value}\""))?;
        if self.children.is_empty() && depth > 0 {
            return writeln!(f, "/>");
        }
        writeln!(f, ">")?;
        self.children.iter().try_for_each(|child| child.write(f, depth + 1))?;
        writeln!(f, "{:1$}</{2}>", "", 2 * depth, self.name)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, 0)
    }
}
