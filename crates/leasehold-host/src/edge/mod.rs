//! The edge: requests for ports inside sandboxes.

pub(crate) mod answer;
pub(crate) mod link;
pub(crate) mod proxy;
pub(crate) mod route;
pub(crate) mod signed;
mod stream;
