//! Feed pages, actions, and Weibo's own commands.

pub(crate) mod among;
pub(crate) mod forget;
pub(crate) mod page;
pub(crate) mod weibo;
