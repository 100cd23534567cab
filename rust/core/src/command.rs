//! Commands: what a workflow may answer, as values (spec 03 §3.1, R16).

use crate::draft::shape;
use crate::error::Result;
use crate::event::{Text, given, instant, needed, optional_text, text};
use crate::json::{self, Cursor, Flaw, MAX_DEPTH, Read};
use crate::names;
use crate::parts::{Child, Progress};
use crate::retry::Policy;
use crate::time::Ns;

/// A decoded command.
#[derive(Debug)]
pub enum Command<'a> {
    Complete { output: &'a str },
    Fail { error: Text<'a> },
    Cancel,
    Timeout { deadline: Ns, reason: Option<Text<'a>> },
    Schedule { members: Vec<Member<'a>>, concurrency: Option<u64> },
}

/// One thing that a scheduling command names.
#[derive(Debug)]
pub enum Member<'a> {
    Step { step_id: Text<'a>, step_name: Text<'a>, input: &'a str, retry: Policy },
    Wait { wait_id: Text<'a>, until: Until },
    Hook { hook_id: Text<'a>, token: Text<'a>, metadata: &'a str },
    Progress(Progress<'a>),
    Child(Child<'a>),
    DisposeHook { hook_id: Text<'a> },
    CloseWait { wait_id: Text<'a> },
}

/// When a wait ends: at an instant, or so long after the decision.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    At(Ns),
    Delay(u64),
}

const NAMES: [&str; 20] = names![
    "type",
    "step_id",
    "step_name",
    "input",
    "retry",
    "steps",
    "members",
    "concurrency",
    "wait_id",
    "resume_at",
    "delay_ms",
    "hook_id",
    "token",
    "metadata",
    "progress",
    "child",
    "output",
    "error",
    "deadline",
    "reason",
];

/// The fields of a command or member; which are looked at depends on its type.
struct Fields<'a>([Option<&'a str>; NAMES.len()]);

impl<'a> Fields<'a> {
    fn read(span: &'a str) -> Read<Self> {
        json::object(span, &NAMES).map(Self)
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        let at = NAMES.iter().position(|known| known.trim_matches(['"', ':']) == name)?;
        self.0.get(at).copied().flatten()
    }

    fn raw(&self, name: &str) -> Read<&'a str> {
        needed(self.get(name))
    }

    fn text(&self, name: &str) -> Read<Text<'a>> {
        text(self.get(name))
    }
}

impl<'a> Command<'a> {
    /// Reads a text made by `draft::part`.
    pub fn read(span: &'a str) -> Result<Self> {
        shape(Self::decode(span))
    }

    fn decode(span: &'a str) -> Read<Self> {
        let fields = Fields::read(span)?;
        Ok(match &*fields.text("type")? {
            "complete" => Self::Complete { output: fields.raw("output")? },
            "fail" => Self::Fail { error: fields.text("error")? },
            "cancel" => Self::Cancel,
            "timeout" => Self::Timeout {
                deadline: instant(fields.raw("deadline")?)?,
                reason: optional_text(fields.get("reason"))?,
            },
            "schedule_steps" => Self::many(&fields, "steps", |step| Member::step(&Fields::read(step)?))?,
            "schedule_all" => Self::many(&fields, "members", |member| {
                let fields = Fields::read(member)?;
                match &*fields.text("type")? {
                    "step" => Member::step(&fields),
                    "hook" => Member::hook(&fields, fields.get("metadata").unwrap_or("null")),
                    kind => Member::of(kind, &fields),
                }
            })?,
            "schedule_step" => Self::one(Member::step(&fields)?),
            "create_hook" => Self::one(Member::hook(&fields, fields.get("metadata").unwrap_or("null"))?),
            kind => Self::one(Member::of(kind, &fields)?),
        })
    }

    fn one(member: Member<'a>) -> Self {
        Self::Schedule { members: vec![member], concurrency: None }
    }

    fn many(fields: &Fields<'a>, list: &str, read: impl Fn(&'a str) -> Read<Member<'a>>) -> Read<Self> {
        let elements = Cursor::new(fields.raw(list)?).elements(MAX_DEPTH)?;
        let members = elements.into_iter().map(read).collect::<Read<_>>()?;
        let concurrency = fields.get("concurrency").filter(|raw| *raw != "null").map(json::unsigned).transpose()?;
        if concurrency == Some(0) {
            return Err(Flaw("concurrency is at least 1"));
        }
        Ok(Self::Schedule { members, concurrency })
    }
}

impl<'a> Member<'a> {
    fn step(fields: &Fields<'a>) -> Read<Self> {
        Ok(Self::Step {
            step_id: fields.text("step_id")?,
            step_name: fields.text("step_name")?,
            input: fields.raw("input")?,
            retry: fields.get("retry").map(Policy::read).transpose()?.unwrap_or_default(),
        })
    }

    fn hook(fields: &Fields<'a>, metadata: &'a str) -> Read<Self> {
        Ok(Self::Hook { hook_id: fields.text("hook_id")?, token: fields.text("token")?, metadata })
    }

    /// The kinds that are spelt alike alone and in a list.
    fn of(kind: &str, fields: &Fields<'a>) -> Read<Self> {
        Ok(match kind {
            "wait_until" => {
                let until = Until::At(instant(fields.raw("resume_at")?)?);
                Self::Wait { wait_id: fields.text("wait_id")?, until }
            }
            "wait_for" => {
                let until = Until::Delay(json::unsigned(fields.raw("delay_ms")?)?);
                Self::Wait { wait_id: fields.text("wait_id")?, until }
            }
            "record_progress" => Self::Progress(Progress::read(fields.raw("progress")?)?),
            "link_child_operation" => Self::Child(Child::read(fields.raw("child")?)?),
            "dispose_hook" => Self::DisposeHook { hook_id: fields.text("hook_id")? },
            "close_wait" => Self::CloseWait { wait_id: fields.text("wait_id")? },
            _ => return Err(Flaw("an unknown command type")),
        })
    }
}

/// The fields of a host call.
#[derive(Debug)]
pub struct Call<'a>([Option<&'a str>; CALL_NAMES.len()]);

const CALL_NAMES: [&str; 14] = names![
    "op", "spec", "input", "drive", "wait_id", "early", "hook_id", "payload", "reason", "deadline", "progress",
    "child", "now", "run_id",
];

impl<'a> Call<'a> {
    /// Reads a text made by `draft::part`.
    pub fn read(span: &'a str) -> Result<Self> {
        shape(json::object(span, &CALL_NAMES).map(Self))
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        let at = CALL_NAMES.iter().position(|known| known.trim_matches(['"', ':']) == name)?;
        self.0.get(at).copied().flatten()
    }

    pub fn raw(&self, name: &str) -> Result<&'a str> {
        shape(needed(self.get(name)))
    }

    pub fn text(&self, name: &str) -> Result<Text<'a>> {
        shape(text(self.get(name)))
    }

    pub fn instant(&self, name: &str) -> Result<Ns> {
        shape(needed(self.get(name)).and_then(instant))
    }

    pub fn reason(&self) -> Result<Option<Text<'a>>> {
        shape(optional_text(self.get("reason")))
    }

    pub fn flag(&self, name: &str, default: bool) -> Result<bool> {
        shape(match self.get(name) {
            None => Ok(default),
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(_) => Err(Flaw("a flag is true or false")),
        })
    }
}

/// One attempt's outcome.
#[derive(Debug)]
pub enum Outcome<'a> {
    Completed { output: &'a str },
    Failed { error: String, failure: Option<String>, suggested_ms: Option<u64> },
    NonRetryable { error: String, failure: Option<String> },
}

impl<'a> Outcome<'a> {
    /// Reads a text made by `draft::part`. Texts are made storable: lone surrogates replaced, cut at the limit of R53.
    pub fn read(span: &'a str) -> Result<Self> {
        shape(Self::decode(span))
    }

    fn decode(span: &'a str) -> Read<Self> {
        let [kind, output, error, suggested, failure] =
            json::object(span, &names!["type", "output", "error", "retry_after_ms", "failure"])?;
        Ok(match &*text(kind)? {
            "completed" => Self::Completed { output: needed(output)? },
            "failed" => {
                let (error, failure) = failed(error, failure)?;
                let suggested_ms = given(suggested).map(suggestion).transpose()?.flatten();
                Self::Failed { error, failure, suggested_ms }
            }
            "non_retryable" => {
                let (error, failure) = failed(error, failure)?;
                Self::NonRetryable { error, failure }
            }
            _ => return Err(Flaw("an unknown outcome type")),
        })
    }
}

fn failed(error: Option<&str>, failure: Option<&str>) -> Read<(String, Option<String>)> {
    let error = storable(needed(error)?)?;
    Ok((error, given(failure).map(storable_failure).transpose()?))
}

/// A suggested delay is any integer; one outside 1 to 2^64 − 1 ms is ignored (R5).
fn suggestion(span: &str) -> Read<Option<u64>> {
    let digits = span.strip_prefix('-').unwrap_or(span);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Flaw("retry_after_ms is an integer"));
    }
    Ok(span.parse().ok().filter(|delay| *delay > 0))
}

/// Most bytes that an error text, or a failure's message, takes in a history (R53).
const MAX_TEXT: usize = 65_536;

/// The text of a string value, lone surrogates replaced by U+FFFD, cut between characters.
fn storable(span: &str) -> Read<String> {
    let raw = span.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).ok_or(Flaw("a string was expected"))?;
    let mut out = String::with_capacity(raw.len());
    for unit in json::Units::new(raw) {
        match unit {
            json::Unit::Plain(part) => out.push_str(part),
            json::Unit::Char(character) => out.push(character),
            json::Unit::Lone(_) => out.push(char::REPLACEMENT_CHARACTER),
        }
    }
    let length = crate::text::cut(&out, MAX_TEXT).len();
    out.truncate(length);
    Ok(out)
}

/// The failure object as given; only a message that cannot be stored as it stands is written anew.
fn storable_failure(span: &str) -> Read<String> {
    crate::event::failure_object(span)?;
    let mut object = Cursor::new(span);
    let Some(message) = object.members(&names!["message"], MAX_DEPTH)?[0].filter(|value| value.starts_with('"')) else {
        return Ok(span.to_owned());
    };
    let stored = storable(message)?;
    if json::text(message).is_ok_and(|message| message == stored) {
        return Ok(span.to_owned());
    }
    let at = message.as_ptr().addr().saturating_sub(span.as_ptr().addr());
    let mut out = span.get(..at).unwrap_or_default().to_owned();
    json::write_string(&mut out, &stored);
    out.push_str(span.get(at + message.len()..).unwrap_or_default());
    Ok(out)
}
