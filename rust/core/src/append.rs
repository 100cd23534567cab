//! Staged drafts as the batch that a store commits: envelopes and the net changes of its index (R13, R47, R50).

use crate::error::{Refusal, Result, Rule};
use crate::json::{write_name, write_string};
use crate::reads::Reads;
use crate::state::{Layer, State};
use crate::table::Span;
use crate::time::{self, Ns};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::sync::Arc;

/// Bytes of entropy that one event id takes.
pub const ENTROPY: usize = 16;

/// What a store commits in one go.
#[derive(Debug)]
pub struct Batch {
    pub run_id: String,
    pub expected_sequence: u64,
    pub last_sequence: u64,
    pub lines: String,
    pub event_ids: Vec<String>,
    pub row: Arc<RunRow>,
    /// The run ended here: all its wakeups and hooks go, and the lists are empty.
    pub clears: bool,
    pub delete_wakeups: Vec<WakeupDelete>,
    pub upsert_wakeups: Vec<WakeupUpsert>,
    pub delete_hooks: Vec<HookDelete>,
    pub insert_hooks: Vec<HookInsert>,
    pub links: Vec<String>,
}

impl Batch {
    /// Whether rows of the index other than the run's own change.
    pub fn changes_index(&self) -> bool {
        self.clears
            || !self.delete_wakeups.is_empty()
            || !self.upsert_wakeups.is_empty()
            || !self.delete_hooks.is_empty()
            || !self.insert_hooks.is_empty()
            || !self.links.is_empty()
    }
}

/// The run's row of the index as it stands after the batch. Counters count open runs only.
#[derive(Clone, Debug)]
pub struct RunRow {
    pub name: String,
    pub version: String,
    pub build: Option<String>,
    pub status: &'static str,
    pub terminal: bool,
    pub open_waits: u32,
    pub active_hooks: u32,
    pub pending_retries: u32,
    pub created_at: Ns,
    pub updated_at: Ns,
    pub ended_at: Option<Ns>,
    pub last_sequence: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeupDelete {
    pub kind: &'static str,
    pub subject_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeupUpsert {
    pub kind: &'static str,
    pub subject_id: String,
    pub due: Ns,
}

#[derive(Clone, PartialEq, Eq)]
pub struct HookInsert {
    pub hook_id: String,
    pub token: String,
    pub token_hash: [u8; 32],
    pub sequence: u64,
}

#[derive(Clone, PartialEq, Eq)]
pub struct HookDelete {
    pub hook_id: String,
    pub token_hash: [u8; 32],
}

macro_rules! hide_token {
    ($name:ident) => {
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).field("hook_id", &self.hook_id).finish_non_exhaustive()
            }
        }
    };
}

hide_token!(HookInsert);
hide_token!(HookDelete);

/// Turns all that `layer` stages into envelopes; `entropy` holds 16 bytes for each event.
pub fn append(after: Reads<'_>, entropy: &[u8]) -> Result<Batch> {
    let state = after.state;
    let nothing = Layer::over(state);
    let layer = after.layer.unwrap_or(&nothing);
    let count = layer.drafts.len();
    let (seeds, rest) = entropy.as_chunks::<ENTROPY>();
    if seeds.len() != count || !rest.is_empty() {
        let value = format!("{} bytes for {count} events", entropy.len());
        return Err(Refusal::about(Rule::EntropyLength, None, None, None, Some(value)));
    }
    let event_ids: Vec<_> = seeds.iter().map(event_id).collect();
    let before = Reads::new(state, None);
    let mut batch = Batch {
        run_id: state.run_id.clone(),
        expected_sequence: state.head.last_sequence,
        last_sequence: layer.head.last_sequence,
        lines: lines(state, layer, &event_ids),
        event_ids,
        row: Arc::new(after.row()),
        clears: after.is_terminal() && !before.is_terminal(),
        delete_wakeups: Vec::new(),
        upsert_wakeups: Vec::new(),
        delete_hooks: Vec::new(),
        insert_hooks: Vec::new(),
        links: links(after, layer),
    };
    if !after.is_terminal() {
        index_wakeups(&mut batch, after, layer);
        index_hooks(&mut batch, after, layer);
    }
    Ok(batch)
}

/// A version 4 UUID of these 16 bytes.
pub fn event_id(entropy: &[u8; ENTROPY]) -> String {
    let mut number = u128::from_be_bytes(*entropy);
    number = number & !(0xf << 76) | (0x4 << 76);
    number = number & !(0x3 << 62) | (0x2 << 62);
    let hex = format!("{number:032x}");
    let part = |from, to| hex.get(from..to).unwrap_or_default();
    format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

fn lines(state: &State, layer: &Layer, event_ids: &[String]) -> String {
    let mut out = String::new();
    let first = state.head.last_sequence + 1;
    for ((draft, event_id), sequence) in layer.drafts.iter().zip(event_ids).zip(first..) {
        out.push_str("{\"run_id\":");
        write_string(&mut out, &state.run_id);
        write_name(&mut out, "sequence");
        out.push_str(&sequence.to_string());
        write_name(&mut out, "event_id");
        write_string(&mut out, event_id);
        write_name(&mut out, "timestamp");
        write_string(&mut out, &time::format(draft.clock));
        write_name(&mut out, "event");
        out.push_str(&draft.json);
        out.push_str("}\n");
    }
    out
}

impl Reads<'_> {
    pub fn row(self) -> RunRow {
        let (head, open) = (self.head(), !self.is_terminal());
        let counted = |count| if open { count } else { 0 };
        RunRow {
            name: self.text(head.name).to_owned(),
            version: self.text(head.version).to_owned(),
            build: self.texts(head.build).map(str::to_owned),
            status: head.shown_status(),
            terminal: !open,
            open_waits: counted(head.open_waits),
            active_hooks: counted(head.active_hooks),
            pending_retries: counted(head.pending_retries),
            created_at: head.created_at,
            updated_at: head.updated_at,
            ended_at: (!open).then_some(head.updated_at),
            last_sequence: head.last_sequence,
        }
    }
}

/// Rows of one kind that the batch touches, before and after, by id.
type Touched<'a, T> = Vec<(&'a str, Option<&'a T>, &'a T)>;

fn touched<'a, T>(mut rows: Touched<'a, T>) -> Touched<'a, T> {
    rows.sort_unstable_by_key(|(id, ..)| *id);
    rows
}

macro_rules! touched {
    ($reads:expr, $layer:expr, $table:ident) => {{
        let changed = $layer.$table.changes(&$reads.state.$table);
        let changed = changed.map(|(_, before, after)| ($reads.text(after.id), Some(before), after));
        let added = $layer.$table.added().map(|(_, after)| ($reads.text(after.id), None, after));
        touched(changed.chain(added).collect())
    }};
}

fn index_wakeups(batch: &mut Batch, after: Reads<'_>, layer: &Layer) {
    for (id, old, new) in touched!(after, layer, waits) {
        batch.wakeup("wait", id, old.and_then(|wait| wait.wakeup()), new.wakeup());
    }
    for (id, old, new) in touched!(after, layer, steps) {
        batch.wakeup("retry", id, old.and_then(|step| step.wakeup()), new.wakeup());
    }
}

impl Batch {
    fn wakeup(&mut self, kind: &'static str, id: &str, old: Option<Ns>, new: Option<Ns>) {
        match (old, new) {
            (Some(_), None) => self.delete_wakeups.push(WakeupDelete { kind, subject_id: id.to_owned() }),
            (old, Some(due)) if old != Some(due) => {
                self.upsert_wakeups.push(WakeupUpsert { kind, subject_id: id.to_owned(), due });
            }
            _ => {}
        }
    }
}

fn index_hooks(batch: &mut Batch, after: Reads<'_>, layer: &Layer) {
    use crate::table::Row;
    for (id, old, new) in touched!(after, layer, hooks) {
        let token = after.text(new.token);
        match (old.is_some_and(|hook| hook.is_open()), new.is_open()) {
            (true, false) => {
                batch.delete_hooks.push(HookDelete { hook_id: id.to_owned(), token_hash: token_hash(token) })
            }
            (false, true) => batch.insert_hooks.push(HookInsert {
                hook_id: id.to_owned(),
                token: token.to_owned(),
                token_hash: token_hash(token),
                sequence: new.created,
            }),
            _ => {}
        }
    }
}

/// SHA-256 of the token: the only form in which an index knows it (R49).
pub fn token_hash(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// Runs linked by this batch, in order, each once.
fn links(after: Reads<'_>, layer: &Layer) -> Vec<String> {
    let mut seen = HashSet::new();
    let linked: Vec<Span> = layer.children.added().filter_map(|(_, fact)| fact.link).collect();
    let links = linked.into_iter().map(|span| after.text(span)).filter(|link| seen.insert(*link));
    links.map(str::to_owned).collect()
}

/// Adopts a committed layer: nothing is read or judged again.
pub fn accept(state: &mut State, layer: &Layer) -> Result<()> {
    Reads::view(state, layer)?;
    state.adopt(layer.clone());
    Ok(())
}
