//! Rows of one kind by id, and the layer of changed and added rows that can lie over them (R4).
//!
//! All texts of a run live in one growing text, its ink; rows hold spans of it and are plain values. A layer continues the ink
//! of what it lies on, so its spans stay good when it is adopted.

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::BuildHasher;

/// A piece of ink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    at: usize,
    len: usize,
}

/// The ink of a run and of the layer over it.
#[derive(Clone, Copy, Debug)]
pub struct Ink<'a> {
    pub below: &'a str,
    pub above: &'a str,
}

impl<'a> Ink<'a> {
    pub fn texts(self, span: Option<Span>) -> Option<&'a str> {
        span.map(|span| self.text(span))
    }

    #[inline]
    pub fn text(self, span: Span) -> &'a str {
        let (source, at) = match span.at.checked_sub(self.below.len()) {
            Some(at) => (self.above, at),
            None => (self.below, span.at),
        };
        source.get(at..at + span.len).unwrap_or_default()
    }
}

/// Writes `text` at the end of a layer's ink, which begins at `below` bytes.
#[inline]
pub fn keep(below: usize, ink: &mut String, text: &str) -> Span {
    let at = below + ink.len();
    ink.push_str(text);
    Span { at, len: text.len() }
}

/// Something with an id that can be open or done.
pub trait Row: Copy {
    fn id(&self) -> Span;
    fn is_open(&self) -> bool;
}

/// A row of which a copy can be taken away from its run.
pub trait Detach: Row {
    /// All its texts.
    fn spans(&mut self) -> impl Iterator<Item = &mut Span>;
}

/// A copy of a row with its texts.
#[derive(Clone, Debug)]
pub struct Detached<T> {
    pub row: T,
    ink: String,
}

impl<T: Detach> Detached<T> {
    pub fn new(ink: Ink<'_>, row: &T) -> Self {
        let mut copy = Self { row: *row, ink: String::new() };
        copy.ink.reserve(copy.row.spans().map(|span| span.len).sum());
        for span in copy.row.spans() {
            *span = keep(0, &mut copy.ink, ink.text(*span));
        }
        copy
    }

    pub fn ink(&self) -> Ink<'_> {
        Ink { below: "", above: &self.ink }
    }

    pub fn text(&self, span: Span) -> &str {
        self.ink().text(span)
    }

    pub fn texts(&self, span: Option<Span>) -> Option<&str> {
        self.ink().texts(span)
    }
}

/// The seed is fixed, so the kernel needs no randomness; the order of a table is never shown.
const HASHER: FixedState = FixedState::with_seed(0x7065_7264_7572_6521);

#[inline]
fn hash(id: &str) -> u64 {
    HASHER.hash_one(id)
}

/// All rows of one kind, in the order in which they were created.
#[derive(Clone, Debug)]
pub struct Table<T> {
    rows: Vec<T>,
    index: HashTable<u32>,
    open: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), index: HashTable::new(), open: Vec::new() }
    }
}

/// Rows that a layer changes or adds.
#[derive(Clone, Debug)]
pub struct Sheet<T> {
    below: u32,
    changed: BTreeMap<u32, T>,
    added: Vec<T>,
    index: HashTable<u32>,
}

impl<T: Row> Table<T> {
    #[inline]
    pub fn find(&self, ink: Ink<'_>, id: &str) -> Option<u32> {
        self.find_hashed(ink, id, hash(id))
    }

    #[inline]
    fn find_hashed(&self, ink: Ink<'_>, id: &str, hash: u64) -> Option<u32> {
        let same = |at: &u32| self.row(*at).is_some_and(|row| ink.text(row.id()) == id);
        self.index.find(hash, same).copied()
    }

    #[inline]
    pub fn row(&self, at: u32) -> Option<&T> {
        self.rows.get(at as usize)
    }

    pub fn rows(&self) -> &[T] {
        &self.rows
    }

    /// The open ones, in the order in which they were created.
    pub fn open(&self) -> impl Iterator<Item = (u32, &T)> {
        self.open.iter().filter_map(|at| Some((*at, self.row(*at)?)))
    }

    /// Takes over what a layer changed and added. `ink` already has the layer's.
    pub fn adopt(&mut self, sheet: Sheet<T>, ink: Ink<'_>) {
        let closes = sheet.changed.values().any(|row| !row.is_open());
        for (at, row) in sheet.changed {
            if let Some(place) = self.rows.get_mut(at as usize) {
                *place = row;
            }
        }
        if closes {
            let rows = &self.rows;
            self.open.retain(|at| rows.get(*at as usize).is_some_and(Row::is_open));
        }
        let opened = (sheet.below..).zip(&sheet.added).filter(|(_, row)| row.is_open());
        self.open.extend(opened.map(|(at, _)| at));
        if self.rows.is_empty() {
            self.rows = sheet.added;
            self.index = sheet.index;
            return;
        }
        for (at, row) in (sheet.below..).zip(sheet.added) {
            self.rows.push(row);
            let rows = &self.rows;
            let hash_of = |at: &u32| rows.get(*at as usize).map_or(0, |row| hash(ink.text(row.id())));
            self.index.insert_unique(hash(ink.text(row.id())), at, hash_of);
        }
    }
}

impl<T: Row> Sheet<T> {
    pub fn over(table: &Table<T>) -> Self {
        let below = u32::try_from(table.rows.len()).unwrap_or(u32::MAX);
        Self { below, changed: BTreeMap::new(), added: Vec::new(), index: HashTable::new() }
    }

    /// Makes room for about so many rows more.
    pub fn reserve(&mut self, rows: usize) {
        if self.added.is_empty() {
            self.added.reserve(rows);
            self.index.reserve(rows, |_| 0);
        }
    }

    #[inline]
    pub fn find(&self, table: &Table<T>, ink: Ink<'_>, id: &str) -> Option<u32> {
        let hash = hash(id);
        let same = |at: &u32| self.own(*at).is_some_and(|row| ink.text(row.id()) == id);
        match self.index.find(hash, same) {
            Some(at) => Some(*at),
            None => table.find_hashed(ink, id, hash),
        }
    }

    #[inline]
    fn own(&self, at: u32) -> Option<&T> {
        self.added.get(at.checked_sub(self.below)? as usize)
    }

    #[inline]
    pub fn row<'r>(&'r self, table: &'r Table<T>, at: u32) -> Option<&'r T> {
        self.own(at).or_else(|| self.changed.get(&at)).or_else(|| table.row(at))
    }

    /// The row to change; one of the table is copied up first.
    #[inline]
    pub fn edit(&mut self, table: &Table<T>, at: u32) -> Option<&mut T> {
        if at >= self.below {
            return self.added.get_mut((at - self.below) as usize);
        }
        match self.changed.entry(at) {
            Entry::Occupied(changed) => Some(changed.into_mut()),
            Entry::Vacant(place) => Some(place.insert(*table.row(at)?)),
        }
    }

    #[inline]
    pub fn add(&mut self, ink: Ink<'_>, row: T) -> u32 {
        let at = self.below.saturating_add(u32::try_from(self.added.len()).unwrap_or(u32::MAX));
        self.added.push(row);
        let (below, added) = (self.below, &self.added);
        let hash_of = |at: &u32| {
            let row = added.get(at.saturating_sub(below) as usize);
            row.map_or(0, |row| hash(ink.text(row.id())))
        };
        self.index.insert_unique(hash(ink.text(row.id())), at, hash_of);
        at
    }

    /// Rows of the table that the layer changed: before and after.
    pub fn changes<'r>(&'r self, table: &'r Table<T>) -> impl Iterator<Item = (u32, &'r T, &'r T)> {
        self.changed.iter().filter_map(|(at, row)| Some((*at, table.row(*at)?, row)))
    }

    pub fn added(&self) -> impl Iterator<Item = (u32, &T)> {
        (self.below..).zip(&self.added)
    }
}
