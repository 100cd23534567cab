//! The rules of a durable run, without I/O, clock or randomness: bytes and instants in, bytes and refusals out.
//!
//! `project` folds a history into a `State`; `stage` puts uncommitted drafts over it as a `Layer`; `Reads` answers about both;
//! `decide`, `settle` and `control` turn what a workflow, a step or a caller says into drafts; `append` turns staged drafts into
//! the lines and index changes that a store commits. Rule numbers (R1 to R65) and sections are those of the specification.

pub mod append;
pub mod canonical;
pub mod command;
pub mod control;
pub mod decide;
pub mod draft;
pub mod equal;
pub mod error;
pub mod event;
pub mod json;
pub mod line;
pub mod parts;
pub mod project;
pub mod reads;
pub mod retry;
pub mod scan;
pub mod settle;
pub mod snapshot;
pub mod state;
pub mod table;
pub mod text;
pub mod time;

pub use error::{Refusal, Result};
pub use reads::Reads;
pub use state::{Layer, State};
