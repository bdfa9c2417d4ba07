//! Views: the columns of a page.

use arc_swap::ArcSwapOption;
use counter::Schema;
use std::sync::Arc;

/// A column of a view. The first number is an index into [`View::sources`].
#[derive(Clone)]
pub(crate) enum Column {
    /// One field, by its position in the schema.
    Field(usize, usize),
    /// All current fields of the space.
    All(usize),
}

/// Columns that FEED.GET returns for each id: counters, then flags.
#[derive(Clone)]
pub struct View {
    pub(crate) name: String,
    /// Indexes of the counter spaces, without duplicates.
    pub(crate) sources: Vec<usize>,
    pub(crate) columns: Vec<Column>,
    /// Indexes of the existence spaces.
    pub(crate) flags: Vec<usize>,
    /// For a joined view: indexes of the views for the second and later ids of an entry.
    pub(crate) then: Vec<usize>,
    pub(crate) shape: CachedShape,
}

impl View {
    /// Whether an entry has several ids.
    #[inline]
    pub fn is_joined(&self) -> bool {
        !self.then.is_empty()
    }

    /// Name of the view.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of flags per id.
    pub fn flags(&self) -> usize {
        self.flags.len()
    }
}

/// Cached shape of a view (`shape.rs`). A clone starts empty, because it may have other spaces.
#[derive(Default)]
pub(crate) struct CachedShape(pub(super) ArcSwapOption<Shape>);

pub(super) struct Shape {
    /// Schemas of the view's sources when the shape was computed.
    pub(super) schemas: Box<[Arc<Schema>]>,
    pub(super) shape: u64,
}

impl Clone for CachedShape {
    fn clone(&self) -> CachedShape {
        CachedShape::default()
    }
}
