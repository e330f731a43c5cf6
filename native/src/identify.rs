//! Identifies events: the twin of `app.ingest.identify` and `app.ingest.record_values`, byte for byte.
//!
//! An event that is not plain in any way is odd, and left to them.

use crate::json::{Field, Item, Reader};
use memchr::memmem;
use std::ops::Range;
use std::sync::Arc;

const ID_BYTES_MAX: usize = 255;
const TYPE_BYTES_MAX: usize = 100;
const RETRY_BYTES_FREE: usize = 1024;
const INTEGER_DIGITS_MAX: usize = 18;
const CONTEXT: &[u8] = b"\"context\":{";

/// Names of fields.
pub struct Names {
    names: Vec<Vec<u8>>,
    lengths: u64,
}

impl Names {
    pub fn new(names: Vec<Vec<u8>>) -> Self {
        let lengths = names.iter().fold(0, |lengths, name| lengths | 1 << name.len().min(63));
        Names { names, lengths }
    }

    fn hold(&self, name: &[u8]) -> bool {
        self.lengths >> name.len().min(63) & 1 == 1 && self.names.iter().any(|each| each == name)
    }
}

/// The names and values by which an event is plain.
pub struct Fields {
    /// Fields that are no content.
    pub ignored: Names,
    /// Those of them that are not part of the record either.
    pub dropped: Names,
    /// An event with one of these fields is odd.
    pub odd: Names,
    /// The JSON of the types that need no advice; empty: no event gets advice.
    pub types: Vec<Vec<u8>>,
}

/// What all events of a request have in common.
pub struct Rules {
    pub fields: Arc<Fields>,
    pub event_bytes_max: usize,
    /// The bytes that the batch adds to each event.
    pub merged_bytes: usize,
    /// `"ip":"..."`; empty: values have no address.
    pub ip_field: Vec<u8>,
    /// What ends a value, and what does where the event has a `sentAt` of its own.
    pub suffix: Vec<u8>,
    pub suffix_without_sent_at: Vec<u8>,
    pub has_session: bool,
    /// The sequence of the request's first event, where events have none.
    pub first_sequence: Option<u64>,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum Context {
    Absent,
    /// An object without an address.
    Open,
    /// Nothing is added to it.
    Kept,
}

/// A plain event, within `Prepared`.
pub struct Plain {
    content: Range<usize>,
    retried: Range<usize>,
    has_sent_at: bool,
    context: Context,
    id: Option<Range<usize>>,
    /// 0 without a session.
    pub sequence: u64,
}

/// The contents of plain events.
#[derive(Default)]
pub struct Prepared {
    pub events: Vec<Plain>,
    contents: Vec<u8>,
    /// The fields that are no content, with commas between.
    retried: Vec<u8>,
}

impl Prepared {
    pub fn content(&self, event: &Plain) -> &[u8] {
        &self.contents[event.content.clone()]
    }

    /// Returns the event's message id; None: it is assigned.
    pub fn id(&self, event: &Plain) -> Option<&[u8]> {
        event.id.clone().map(|id| &self.contents[id])
    }

    /// Adds the item at `index` of its request, and returns its size; None if it is odd.
    pub fn add(&mut self, item: &Item, reader: &Reader, rules: &Rules, index: usize) -> Option<usize> {
        if item.is_odd {
            return None;
        }
        let (contents, retried) = (self.contents.len(), self.retried.len());
        let event = self.plain(&reader.fields[item.fields.clone()], &reader.text, rules, index);
        let Some(event) = event else {
            self.contents.truncate(contents);
            self.retried.truncate(retried);
            return None;
        };
        let size = event.content.len() + rules.merged_bytes;
        self.events.push(event);
        Some(size)
    }

    fn plain(&mut self, fields: &[Field], text: &[u8], rules: &Rules, index: usize) -> Option<Plain> {
        let (start, retried_from) = (self.contents.len(), self.retried.len());
        let (mut id, mut sequence, mut context, mut has_sent_at) = (None, None, Context::Absent, false);
        let (mut event_type, mut has_name): (&[u8], bool) = (b"", false);
        self.contents.push(b'{');
        for field in fields {
            let (name, value) = (field.name(text), field.value(text));
            if rules.fields.odd.hold(name) {
                return None;
            }
            if rules.fields.ignored.hold(name) {
                match name {
                    b"sentAt" if value == b"null" => return None,
                    b"sentAt" => has_sent_at = true,
                    b"sequence" if rules.has_session => sequence = Some(whole_number(value)?),
                    _ => {}
                }
                if !rules.fields.dropped.hold(name) {
                    self.retried.extend_from_slice(field.whole(text));
                    self.retried.push(b',');
                }
                continue;
            }
            match name {
                b"messageId" => {
                    let text = plain_text(value, ID_BYTES_MAX)?;
                    let from = self.contents.len() + name.len() + 4;
                    id = Some(from..from + text.len());
                    if !(b'!'..0x7f).contains(text.first()?) {
                        return None;
                    }
                }
                b"type" => event_type = value,
                b"event" => has_name = value.len() > 2 && value[0] == b'"',
                b"context" if !rules.ip_field.is_empty() => context = context_of(value)?,
                _ => {}
            }
            self.contents.extend_from_slice(field.whole(text));
            self.contents.push(b',');
        }
        if self.contents.len() - start < 2 || !is_plain_type(event_type, has_name, rules) {
            return None;
        }
        *self.contents.last_mut()? = b'}';
        if self.retried.len() > retried_from {
            self.retried.pop();
        }
        let sequence = match (rules.has_session, rules.first_sequence) {
            (false, _) => 0,
            (true, first) => sequence.or_else(|| first?.checked_add(index as u64))?,
        };
        let (content, retried) = (start..self.contents.len(), retried_from..self.retried.len());
        let is_placed = if rules.has_session { sequence > 0 } else { id.is_some() };
        let is_small = content.len() + rules.merged_bytes <= rules.event_bytes_max;
        if !is_placed || !is_small || retried.len() + 2 > RETRY_BYTES_FREE {
            return None;
        }
        let event = Plain { content, retried, has_sent_at, context, id, sequence };
        self.takes_address(&event).then_some(event)
    }

    /// Whether the client's address can be added without writing the event again.
    fn takes_address(&self, event: &Plain) -> bool {
        if event.context != Context::Open {
            return true;
        }
        let content = self.content(event);
        let Some(at) = memmem::find(content, CONTEXT) else { return false };
        let before = &content[..at];
        matches!(before.last(), Some(b'{' | b','))
            && memchr::memrchr(b'{', before) == Some(0)
            && memchr::memchr(b'[', before).is_none()
    }

    /// Writes the value of an event's record; `assigned_id` is empty if it has its own.
    pub fn write_value(&self, event: &Plain, rules: &Rules, assigned_id: &[u8], value: &mut Vec<u8>) {
        let content = self.content(event);
        let open = &content[..content.len() - 1];
        let mut put = |part: &[u8]| value.extend_from_slice(part);
        match event.context {
            Context::Open => {
                let at = memmem::find(content, CONTEXT).map_or(0, |at| at + CONTEXT.len());
                put(&open[..at]);
                put(&rules.ip_field);
                put(b",");
                put(&open[at..]);
            }
            Context::Absent if !rules.ip_field.is_empty() => {
                put(open);
                put(b",\"context\":{");
                put(&rules.ip_field);
                put(b"}");
            }
            _ => put(open),
        }
        if !assigned_id.is_empty() {
            put(b",\"messageId\":\"");
            put(assigned_id);
            put(b"\"");
        }
        if !event.retried.is_empty() {
            put(b",");
            put(&self.retried[event.retried.clone()]);
        }
        put(if event.has_sent_at { &rules.suffix_without_sent_at } else { &rules.suffix });
    }
}

/// Returns the text of a short JSON string without escapes.
fn plain_text(value: &[u8], bytes_max: usize) -> Option<&[u8]> {
    let text = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    (text.len() <= bytes_max && !text.contains(&b'\\')).then_some(text)
}

fn is_plain_type(value: &[u8], has_name: bool, rules: &Rules) -> bool {
    let is_text =
        plain_text(value, TYPE_BYTES_MAX).is_some_and(|text| text.iter().all(|byte| (b' '..0x7f).contains(byte)));
    let needs_no_advice = rules.fields.types.is_empty()
        || (rules.fields.types.iter().any(|each| each == value) && (has_name || value != b"\"track\""));
    is_text && needs_no_advice
}

fn whole_number(value: &[u8]) -> Option<u64> {
    let is_short = value.len() <= INTEGER_DIGITS_MAX && value.iter().all(u8::is_ascii_digit);
    is_short.then(|| value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

/// Returns how an event's `context` takes the client's address; None if it must be written again.
fn context_of(value: &[u8]) -> Option<Context> {
    if value == b"null" || value == b"{}" {
        return None;
    }
    if value[0] != b'{' || has_address(value)? {
        return Some(Context::Kept);
    }
    Some(Context::Open)
}

/// Whether an object has a field `ip`; None if that is null.
fn has_address(object: &[u8]) -> Option<bool> {
    const NAME: &[u8] = b"\"ip\":";
    let mut depth = 0;
    let mut at = 0;
    if memmem::find(object, NAME).is_none() {
        return Some(false);
    }
    while at < object.len() {
        match object[at] {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            b'"' => {
                if depth == 1 && object[at..].starts_with(NAME) && matches!(object[at - 1], b'{' | b',') {
                    return (!object[at + NAME.len()..].starts_with(b"null")).then_some(true);
                }
                at = end_of_string(object, at);
            }
            _ => {}
        }
        at += 1;
    }
    Some(false)
}

/// Returns the place of the quote that ends the string that begins at `at`.
fn end_of_string(text: &[u8], mut at: usize) -> usize {
    loop {
        at += 1;
        match text.get(at) {
            Some(b'\\') => at += 1,
            Some(b'"') | None => return at,
            _ => {}
        }
    }
}
