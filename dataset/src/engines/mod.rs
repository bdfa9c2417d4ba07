//! Engines of a data set: its spaces, views and actions, and the operations on them.
//!
//! `build.rs` creates the engines from configuration and catalogue. `page.rs` reads pages,
//! `shape.rs` hashes the columns of replies, and `write.rs` contains the writes.

mod act;
mod action;
mod among;
pub mod audit;
mod build;
pub mod change;
pub mod current;
mod error;
pub mod events;
mod forget;
mod memory;
mod page;
mod registry;
mod retire;
mod shape;
mod spaces;
mod view;
mod write;

pub use action::Action;
pub use among::MemberSets;
pub use build::existence_options;
pub use change::ChangeError;
pub use current::Current;
pub use error::{AlterError, BuildError, WriteError};
pub use page::Page;
pub use registry::{ChangeListener, Engines, KeyError, KeyRef, Listener};
pub use spaces::{CounterSpace, ExistenceSpace, NO_MEMBER};
pub use view::View;
pub use write::WatchedState;
