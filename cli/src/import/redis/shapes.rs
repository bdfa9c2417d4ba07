//! Counts names by their shape. A shape replaces digits with `*`: `session:17` and `session:18`
//! have the shape `session:*`. A summary shows the most frequent shapes.

use super::layout::shown;
use crate::import::summary::MAX_SHOWN_ERRORS;
use indicatif::HumanCount;
use std::collections::HashMap;
use std::fmt;

/// Maximum number of shapes. Names with further shapes are only included in the total.
const MAX_SHAPES: usize = 1000;
/// Length in bytes above which a part of a name is considered random.
const MAX_PART_BYTES: usize = 24;

#[derive(Debug, Default)]
pub(crate) struct Shapes {
    pub(crate) total: u64,
    /// Number of names of each shape, and the first such name.
    shapes: HashMap<Vec<u8>, (u64, Vec<u8>)>,
}

impl Shapes {
    pub(crate) fn add(&mut self, name: &[u8]) {
        self.total += 1;
        self.count(shape(name), 1, name);
    }

    pub(crate) fn merge(&mut self, other: Shapes) {
        self.total += other.total;
        for (shape, (count, first)) in other.shapes {
            self.count(shape, count, &first);
        }
    }

    fn count(&mut self, shape: Vec<u8>, count: u64, first: &[u8]) {
        if let Some((known, _)) = self.shapes.get_mut(&shape) {
            *known += count;
        } else if self.shapes.len() < MAX_SHAPES {
            self.shapes.insert(shape, (count, first.to_vec()));
        }
    }
}

/// Formats the most frequent shapes with their counts. A shape with only one name is shown as that
/// name.
impl fmt::Display for Shapes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all: Vec<_> = self.shapes.iter().collect();
        all.sort_by(|(a, (more, _)), (b, (less, _))| less.cmp(more).then(a.cmp(b)));
        let text = |(shape, (count, first)): &(&Vec<u8>, &(u64, Vec<u8>))| match count {
            1 => shown(first),
            _ => format!("{} {}", shown(shape), HumanCount(*count)),
        };
        let some: Vec<String> = all.iter().take(MAX_SHOWN_ERRORS).map(text).collect();
        let counted: u64 = all.iter().take(MAX_SHOWN_ERRORS).map(|(_, (count, _))| count).sum();
        let more = if counted < self.total { ", ..." } else { "" };
        write!(f, "{}{more}", some.join(", "))
    }
}

fn shape(name: &[u8]) -> Vec<u8> {
    let mut shape = Vec::new();
    for part in name.split_inclusive(|byte| b":./|".contains(byte)) {
        let (text, end) = match part.split_last() {
            Some((end, text)) if b":./|".contains(end) => (text, &[*end][..]),
            _ => (part, &[][..]),
        };
        let plain = text.iter().position(u8::is_ascii_digit).unwrap_or(text.len());
        if text.len() > MAX_PART_BYTES {
            shape.push(b'*');
        } else {
            shape.extend_from_slice(&text[..plain]);
            if plain < text.len() {
                shape.push(b'*');
            }
        }
        shape.extend_from_slice(end);
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_counted_by_shape() {
        let mut shapes = Shapes::default();
        for n in 0..30 {
            shapes.add(format!("session:{n}x").as_bytes());
            shapes.add(format!("post:{n}:likes").as_bytes());
        }
        ["cache7", "cache8", "queue", "a:9", &"x".repeat(40)].iter().for_each(|name| {
            shapes.add(name.as_bytes());
        });
        let mut all = Shapes::default();
        all.merge(shapes);
        let long = "x".repeat(40);
        let text = format!("post:*:likes 30, session:* 30, cache* 2, {long}, a:9, ...");
        assert_eq!((all.total, all.to_string()), (65, text));
    }

    #[test]
    fn memory_is_bounded() {
        let mut shapes = Shapes::default();
        let letters = |n: u64| (0..5).map(move |at| (b'a' + (n / 9u64.pow(at) % 9) as u8) as char);
        (0..5000).for_each(|n| shapes.add(letters(n).collect::<String>().as_bytes()));
        assert_eq!((shapes.total, shapes.shapes.len()), (5000, MAX_SHAPES));
    }
}
