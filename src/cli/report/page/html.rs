//! Writes the elements of a page. The output is well-formed XML and HTML at once. By construction, every element is
//! closed, and every text and attribute is escaped.

use quick_xml::Writer;
use quick_xml::events::{BytesEnd, BytesStart, BytesText, Event};

use crate::fault::is_unprintable;

/// Attributes of an element.
pub(super) type Attributes<'a> = &'a [(&'a str, &'a str)];

/// Elements that have no end tag in HTML.
const VOID: &[&str] = &["meta", "br", "hr", "path", "rect", "line"];

/// A page being written.
pub(super) struct Html(Writer<Vec<u8>>);

impl Html {
    pub(super) fn new() -> Self {
        let mut html = Self(Writer::new(Vec::new()));
        html.event(Event::DocType(BytesText::from_escaped("html")));
        html
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        let mut bytes = self.0.into_inner();
        bytes.push(b'\n');
        bytes
    }

    fn event(&mut self, event: Event<'_>) {
        self.0.write_event(event).expect("memory takes everything");
    }

    /// Writes an element with its contents.
    pub(super) fn element(&mut self, name: &str, attributes: Attributes<'_>, inner: impl FnOnce(&mut Self)) {
        let mut start = BytesStart::new(name);
        for (key, value) in attributes {
            start.push_attribute((*key, &*printable(value)));
        }
        if VOID.contains(&name) {
            return self.event(Event::Empty(start));
        }
        self.event(Event::Start(start));
        inner(self);
        self.event(Event::End(BytesEnd::new(name)));
    }

    /// Writes an empty element.
    pub(super) fn empty(&mut self, name: &str, attributes: Attributes<'_>) {
        self.element(name, attributes, |_| {});
    }

    /// Writes an element of a class that contains a text.
    pub(super) fn words(&mut self, name: &str, class: &str, text: &str) {
        let class = [("class", class)];
        self.element(name, if class[0].1.is_empty() { &[] } else { &class }, |html| html.text(text));
    }

    /// Writes a value for programs, shown as a text for people.
    pub(super) fn data(&mut self, class: &str, value: &str, text: &str) {
        self.element("data", &[("class", class), ("value", value)], |html| html.text(text));
    }

    pub(super) fn text(&mut self, text: &str) {
        self.event(Event::Text(BytesText::new(&printable(text))));
    }

    /// Writes the style sheet, which is part of this program and contains nothing that needs escaping.
    pub(super) fn style(&mut self, css: &str) {
        debug_assert!(!css.contains(['<', '&']), "it would need to be escaped, which HTML does not undo there");
        self.element("style", &[], |html| html.event(Event::Text(BytesText::from_escaped(css))));
    }
}

/// Makes a text fit for a page: removes characters that XML does not allow, and those that change the direction of the
/// line.
fn printable(text: &str) -> String {
    let shown = |letter: char| match letter {
        '\n' | '\r' | '\t' => ' ',
        '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}' => '\u{fffd}',
        letter if is_unprintable(letter) => '\u{fffd}',
        letter => letter,
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_written_becomes_an_element_or_leaves_its_attribute() {
        let mut html = Html::new();
        let hostile = "</p><script>alert('1')</script>\u{0}\u{1b}[2J\u{202e}\u{61c}\u{ffff}\" onload=\"x &amp; ]]>";
        html.element("p", &[("title", hostile)], |html| html.text(hostile));
        html.empty("br", &[]);
        let text = String::from_utf8(html.into_bytes()).expect("text");
        assert!(!text.contains("<script") && !text.contains("onload=\"x"), "{text}");
        assert!(text.starts_with("<!DOCTYPE html><p title=\"") && text.trim_end().ends_with("</p><br/>"), "{text}");
        assert!(!text.trim_end().chars().any(is_unprintable), "{text}");
    }
}
